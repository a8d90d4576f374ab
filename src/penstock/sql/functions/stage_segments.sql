-- penstock.stage_segments(stage, first_ordinal, queue_names, partition_names, counts, body, ends, keys, key_ends,
--                         headers, header_ends)
--
-- Writes packed segments to a stage. The queue's limits and compression hold here, as they do for a push. Calling it
-- again with the same first_ordinal does nothing, so a caller whose connection broke may repeat the call.
--
-- The columns of all segments lie end to end in one value, and each is cut out of it here: an array of them would be
-- copied twice more, to disk where it is large, and costs the caller an object per segment.
--
-- Parameters: first_ordinal - how many segments the stage has before these; queue_names, partition_names, counts - an
-- entry per segment; body, keys, headers - the columns of push_segment, one segment after the other; ends, key_ends,
-- header_ends - where each value ends, counted anew from 0 in every segment. A segment whose keys are all empty has
-- none, and so with headers.
-- Returns: nothing; raises object_not_in_prerequisite_state when the stage was given up or is published already.
-- Calls: require_names, require_packed, compresses, effective_settings, int32_at. Tables: stages (lock), staged,
-- segments (insert), queues (read).
CREATE OR REPLACE FUNCTION penstock.stage_segments(
    stage           bigint,
    first_ordinal   bigint,
    queue_names     text[],
    partition_names text[],
    counts          integer[],
    body            bytea,
    ends            bytea,
    keys            bytea DEFAULT NULL,
    key_ends        bytea DEFAULT NULL,
    headers         bytea DEFAULT NULL,
    header_ends     bytea DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    known        text[] := ARRAY(SELECT DISTINCT n FROM unnest(queue_names) n);
    limits       integer[];
    compress     boolean[];
    firsts       integer[];
    body_sizes   integer[];
    key_sizes    integer[];
    header_sizes integer[];
BEGIN
    IF (cardinality(queue_names) = ALL (ARRAY[cardinality(partition_names), cardinality(counts)])) IS NOT TRUE THEN
        RAISE EXCEPTION 'queue_names, partition_names and counts must be of one length'
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

    -- As one segment first: then what follows reads within the columns only.
    IF (1 <= ALL (counts) AND 1000000 >= ALL (counts)) IS NOT TRUE THEN
        RAISE EXCEPTION 'a segment must have 1 to 1000000 messages' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT array_agg(c.before::integer ORDER BY c.position) INTO firsts
    FROM (
        SELECT u.position, sum(u.count) OVER (ORDER BY u.position ROWS UNBOUNDED PRECEDING) - u.count AS before
        FROM unnest(counts) WITH ORDINALITY u (count, position)
    ) c;
    IF (
        octet_length(ends) = 4 * (firsts[cardinality(firsts)] + counts[cardinality(counts)]) AND body IS NOT NULL
        AND (keys IS NULL) = (key_ends IS NULL) AND (headers IS NULL) = (header_ends IS NULL)
        AND coalesce(octet_length(key_ends), octet_length(ends)) = octet_length(ends)
        AND coalesce(octet_length(header_ends), octet_length(ends)) = octet_length(ends)
    ) IS NOT TRUE THEN
        RAISE EXCEPTION 'a packed column needs four bytes of ends for each message'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT
        array_agg(penstock.int32_at(ends, u.first + u.count - 1) ORDER BY u.position),
        array_agg(coalesce(penstock.int32_at(key_ends, u.first + u.count - 1), 0) ORDER BY u.position),
        array_agg(coalesce(penstock.int32_at(header_ends, u.first + u.count - 1), 0) ORDER BY u.position)
    INTO body_sizes, key_sizes, header_sizes
    FROM unnest(firsts, counts) WITH ORDINALITY u (first, count, position);
    IF 0 > ANY (body_sizes) OR 0 > ANY (key_sizes) OR 0 > ANY (header_sizes)
       OR (SELECT sum(s) FROM unnest(body_sizes) s) <> octet_length(body)
       OR (SELECT sum(s) FROM unnest(key_sizes) s) <> coalesce(octet_length(keys), 0)
       OR (SELECT sum(s) FROM unnest(header_sizes) s) <> coalesce(octet_length(headers), 0)
    THEN
        RAISE EXCEPTION 'the last ends of all segments must add up to the length of the column'
            USING ERRCODE = 'invalid_parameter_value';
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
    -- Only a segment that is over the limit as a whole can hold a message that is.
    PERFORM penstock.require_packed(
        s.queue_name, s.allowed, s.count, substring(body FROM s.body_start FOR s.body_size),
        substring(ends FROM s.first + 1 FOR 4 * s.count), NULL, NULL, NULL, NULL
    )
    FROM (
        SELECT
            u.queue_name, limits[array_position(known, u.queue_name)] AS allowed, u.count, 4 * u.first AS first, u.body_size,
            (sum(u.body_size) OVER (ORDER BY u.position ROWS UNBOUNDED PRECEDING) - u.body_size + 1)::integer AS body_start
        FROM unnest(queue_names, counts, firsts, body_sizes) WITH ORDINALITY u (queue_name, count, first, body_size, position)
    ) s
    WHERE s.body_size > s.allowed;
    INSERT INTO penstock.segments (
        partition_id, base_offset, created_at, count, bytes,
        body, body_compressed, ends, keys, key_ends, headers, header_ends
    )
    SELECT
        -stage, stage_segments.first_ordinal + s.position - 1, clock_timestamp(), s.count,
        s.body_size + s.key_size + s.header_size,
        CASE WHEN NOT c.compressed THEN substring(stage_segments.body FROM s.body_start FOR s.body_size) END,
        CASE WHEN c.compressed THEN substring(stage_segments.body FROM s.body_start FOR s.body_size) END,
        substring(stage_segments.ends FROM s.first + 1 FOR 4 * s.count),
        CASE WHEN s.key_size > 0 THEN substring(stage_segments.keys FROM s.key_start FOR s.key_size) END,
        CASE WHEN s.key_size > 0 THEN substring(stage_segments.key_ends FROM s.first + 1 FOR 4 * s.count) END,
        CASE WHEN s.header_size > 0 THEN substring(stage_segments.headers FROM s.header_start FOR s.header_size) END,
        CASE WHEN s.header_size > 0 THEN substring(stage_segments.header_ends FROM s.first + 1 FOR 4 * s.count) END
    FROM (
        SELECT
            u.queue_name, u.count, 4 * u.first AS first, u.position, u.body_size, u.key_size, u.header_size,
            (sum(u.body_size) OVER before - u.body_size + 1)::integer AS body_start,
            (sum(u.key_size) OVER before - u.key_size + 1)::integer AS key_start,
            (sum(u.header_size) OVER before - u.header_size + 1)::integer AS header_start
        FROM unnest(queue_names, counts, firsts, body_sizes, key_sizes, header_sizes)
            WITH ORDINALITY u (queue_name, count, first, body_size, key_size, header_size, position)
        WINDOW before AS (ORDER BY u.position ROWS UNBOUNDED PRECEDING)
    ) s
    CROSS JOIN LATERAL (SELECT compress[array_position(known, s.queue_name)] AS compressed) c;
END
$$;
