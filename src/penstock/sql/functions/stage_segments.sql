-- penstock.stage_segments(stage, first_ordinal, queue_names, partition_names, counts, bodies, ends, keys, key_ends,
--                         headers, header_ends)
--
-- Writes packed segments to a stage. The queue's limits and compression hold here, as they do for a push. Calling it
-- again with the same first_ordinal does nothing, so a caller whose connection broke may repeat the call.
--
-- Parameters: first_ordinal - how many segments the stage has before these; the others as in push_segments.
-- Returns: nothing; raises object_not_in_prerequisite_state when the stage was given up or is published already.
-- Calls: require_names, require_packed, packed_bytes, compresses, effective_settings. Tables: stages (lock), staged,
-- segments (insert), queues (read).
CREATE OR REPLACE FUNCTION penstock.stage_segments(
    stage           bigint,
    first_ordinal   bigint,
    queue_names     text[],
    partition_names text[],
    counts          integer[],
    bodies          bytea[],
    ends            bytea[],
    keys            bytea[] DEFAULT NULL,
    key_ends        bytea[] DEFAULT NULL,
    headers         bytea[] DEFAULT NULL,
    header_ends     bytea[] DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    known    text[] := ARRAY(SELECT DISTINCT n FROM unnest(queue_names) n);
    limits   integer[];
    compress boolean[];
BEGIN
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(partition_names), cardinality(counts), cardinality(bodies), cardinality(ends)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'queue_names, partition_names, counts, bodies and ends must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The commit that publishes waits for the log, and for all before it; this one need not.
    PERFORM set_config('synchronous_commit', 'off', true);
    -- Held until we commit: whoever publishes or gives up the stage sees these segments, or we find it gone.
    PERFORM 1 FROM penstock.stages s WHERE s.stage_id = stage FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stage % is gone: another attempt was published, or it was given up', stage
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM penstock.require_names(VARIADIC known);
    PERFORM penstock.require_names(VARIADIC ARRAY(SELECT DISTINCT n FROM unnest(partition_names) n));
    INSERT INTO penstock.staged (stage_id, first_ordinal, queue_names, partition_names, counts)
    VALUES (
        stage, stage_segments.first_ordinal, stage_segments.queue_names, stage_segments.partition_names,
        stage_segments.counts
    )
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN; -- a call that is made again
    END IF;
    SELECT
        array_agg((q.settings ->> 'max_message_bytes')::integer ORDER BY k.position),
        array_agg(penstock.compresses(q.settings ->> 'compression') ORDER BY k.position)
    INTO limits, compress
    FROM unnest(known) WITH ORDINALITY k (name, position)
    CROSS JOIN LATERAL (
        SELECT coalesce(
            (SELECT q.settings FROM penstock.queues q WHERE q.name = k.name), penstock.effective_settings('{}')
        ) AS settings
    ) q;
    PERFORM penstock.require_packed(
        s.queue_name, limits[array_position(known, s.queue_name)],
        s.count, s.body, s.ends, s.keys, s.key_ends, s.headers, s.header_ends
    )
    FROM unnest(queue_names, counts, bodies, ends, keys, key_ends, headers, header_ends)
        s (queue_name, count, body, ends, keys, key_ends, headers, header_ends);
    INSERT INTO penstock.segments (
        partition_id, base_offset, created_at, count, bytes,
        body, body_compressed, ends, keys, key_ends, headers, header_ends
    )
    SELECT
        -stage, stage_segments.first_ordinal + s.position - 1, clock_timestamp(), s.count,
        penstock.packed_bytes(s.body, s.keys, s.headers),
        CASE WHEN NOT c.compressed THEN s.body END, CASE WHEN c.compressed THEN s.body END,
        s.ends, s.keys, s.key_ends, s.headers, s.header_ends
    FROM unnest(
        queue_names, counts, bodies, ends, keys, key_ends, headers, header_ends
    ) WITH ORDINALITY s (
        queue_name, count, body, ends, keys, key_ends, headers, header_ends, position
    )
    CROSS JOIN LATERAL (SELECT compress[array_position(known, s.queue_name)] AS compressed) c;
END
$$;
