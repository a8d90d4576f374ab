-- penstock.stage_segments(stage, first_ordinal, queue_names, partition_names, counts, body, ends, keys, key_ends,
--                         headers, header_ends)
--
-- Writes packed segments to a stage. The limits and the compression of the queue apply, as for a push. To call it
-- again with the same first_ordinal does nothing, so a caller whose connection broke may repeat the call.
--
-- The columns of all segments are concatenated in one value, which is cut here: an array of them would be copied
-- twice more, to disk if it is large, and would cost the caller an object per segment.
--
-- Parameters: first_ordinal - the number of segments that the stage has before these; queue_names, partition_names,
-- counts - one entry per segment; body, keys, headers - the columns of push_segment, one segment after the other;
-- ends, key_ends, header_ends - where each value ends, counted from 0 in every segment; if some values are null, a
-- byte per message follows all ends. A segment whose keys are all empty has none; the same for headers.
-- Returns: nothing; raises object_not_in_prerequisite_state if the stage was removed or published, and
-- insufficient_privilege if it belongs to another user.
-- Calls: lock_stage, require_names, require_packed, require_texts, texts_are_plain, column_starts, null_flags,
-- compresses, effective_settings. Tables: staged, segments (insert), queues (read).
-- Granted to: producer.
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
    known         text[] := ARRAY(SELECT DISTINCT n FROM unnest(queue_names) n);
    limits        integer[];
    compress      boolean[];
    -- Where each segment begins, and where the last one ends: in messages, and in bytes of each column.
    firsts        integer[] := 0 || counts;
    body_starts   integer[];
    key_starts    integer[];
    header_starts integer[];
    total         integer;
    nulls         bytea;
BEGIN
    IF (cardinality(queue_names) = ALL (ARRAY[cardinality(partition_names), cardinality(counts)])) IS NOT TRUE THEN
        RAISE EXCEPTION 'queue_names, partition_names and counts must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.lock_stage(stage);
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
    -- A loop: the same with window functions takes three times as long.
    FOR nth IN 1..cardinality(counts) LOOP
        firsts[nth + 1] := firsts[nth] + counts[nth];
    END LOOP;
    total := firsts[cardinality(firsts)];
    nulls := penstock.null_flags(total, ends);
    IF (
        octet_length(ends) IN (4 * total, 5 * total) AND body IS NOT NULL
        AND (keys IS NULL) = (key_ends IS NULL) AND (headers IS NULL) = (header_ends IS NULL)
        AND coalesce(octet_length(key_ends), 4 * total) = 4 * total
        AND coalesce(octet_length(header_ends), 4 * total) = 4 * total
        AND coalesce(btrim(nulls, decode('0001', 'hex')), '') = ''
    ) IS NOT TRUE THEN
        RAISE EXCEPTION 'a packed column needs four bytes of ends for each message'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    body_starts := penstock.column_starts(firsts, body, ends);
    key_starts := penstock.column_starts(firsts, keys, key_ends);
    header_starts := penstock.column_starts(firsts, headers, header_ends);

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
    -- All keys and headers at once; only where something may be wrong, segment by segment.
    IF (keys IS NOT NULL OR headers IS NOT NULL) AND NOT penstock.texts_are_plain(keys, headers) THEN
        PERFORM penstock.require_texts(
            counts[nth],
            substring(keys FROM key_starts[nth] + 1 FOR key_starts[nth + 1] - key_starts[nth]),
            substring(key_ends FROM 4 * firsts[nth] + 1 FOR 4 * counts[nth]),
            substring(headers FROM header_starts[nth] + 1 FOR header_starts[nth + 1] - header_starts[nth]),
            substring(header_ends FROM 4 * firsts[nth] + 1 FOR 4 * counts[nth])
        )
        FROM generate_series(1, cardinality(counts)) nth;
    END IF;
    -- Only a segment that is over the limit as a whole can hold a message that is.
    PERFORM penstock.require_packed(
        s.queue_name, s.allowed, counts[s.nth], substring(body FROM body_starts[s.nth] + 1 FOR s.size),
        substring(ends FROM 4 * firsts[s.nth] + 1 FOR 4 * counts[s.nth]), NULL, NULL, NULL, NULL
    )
    FROM (
        SELECT
            u.queue_name, u.nth, limits[array_position(known, u.queue_name)] AS allowed,
            body_starts[u.nth + 1] - body_starts[u.nth] AS size
        FROM unnest(queue_names) WITH ORDINALITY u (queue_name, nth)
    ) s
    WHERE s.size > least(s.allowed, 67108864);
    IF coalesce(octet_length(keys), 0)::bigint + coalesce(octet_length(headers), 0) > 67108864 THEN
        RAISE EXCEPTION 'the keys and headers that are staged at once may have 67108864 bytes'
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Stage fewer messages at once.';
    END IF;
    INSERT INTO penstock.segments (
        partition_id, base_offset, created_at, count, bytes,
        body, body_compressed, ends, keys, key_ends, headers, header_ends
    )
    SELECT
        -stage, stage_segments.first_ordinal + s.nth - 1, clock_timestamp(), s.count,
        s.body_size + s.key_size + s.header_size,
        CASE WHEN NOT c.compressed THEN substring(stage_segments.body FROM s.body_start FOR s.body_size) END,
        CASE WHEN c.compressed THEN substring(stage_segments.body FROM s.body_start FOR s.body_size) END,
        CASE WHEN position(decode('01', 'hex') IN n.flags) > 0
            THEN substring(stage_segments.ends FROM s.first + 1 FOR 4 * s.count) || n.flags
            ELSE substring(stage_segments.ends FROM s.first + 1 FOR 4 * s.count)
        END,
        CASE WHEN s.key_size > 0 THEN substring(stage_segments.keys FROM key_starts[s.nth] + 1 FOR s.key_size) END,
        CASE WHEN s.key_size > 0 THEN substring(stage_segments.key_ends FROM s.first + 1 FOR 4 * s.count) END,
        CASE WHEN s.header_size > 0 THEN
            substring(stage_segments.headers FROM header_starts[s.nth] + 1 FOR s.header_size)
        END,
        CASE WHEN s.header_size > 0 THEN substring(stage_segments.header_ends FROM s.first + 1 FOR 4 * s.count) END
    FROM (
        SELECT
            u.queue_name, u.count, u.nth, 4 * firsts[u.nth] AS first, body_starts[u.nth] + 1 AS body_start,
            body_starts[u.nth + 1] - body_starts[u.nth] AS body_size,
            coalesce(key_starts[u.nth + 1] - key_starts[u.nth], 0) AS key_size,
            coalesce(header_starts[u.nth + 1] - header_starts[u.nth], 0) AS header_size
        FROM unnest(queue_names, counts) WITH ORDINALITY u (queue_name, count, nth)
    ) s
    CROSS JOIN LATERAL (SELECT compress[array_position(known, s.queue_name)] AS compressed) c
    CROSS JOIN LATERAL (SELECT substring(nulls FROM firsts[s.nth] + 1 FOR s.count) AS flags) n;
END
$$;
