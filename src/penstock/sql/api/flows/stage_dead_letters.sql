-- penstock.stage_dead_letters(stage, group_name, queue_names, partition_names, offsets, reasons, errors, of_source,
--                             payloads, keys, headers, times, row_ids)
--
-- Says of messages that they become dead letters of a group when their epoch is published, and not before. Calling it
-- again with the same messages does nothing.
--
-- Parameters: stage - of the same epoch; group_name - whose dead letters; queue_names, partition_names, offsets -
-- which messages, as parallel arrays, with reasons and errors; of_source - whether it depends on the message alone, so
-- that it counts whichever attempt of a task says so. Where the caller has copies, of messages that the log may not have
-- any more: payloads, keys, headers (JSON), times. row_ids - the row that failed, where it is made of several messages;
-- a message that is there several times failed with several rows.
-- Returns: nothing; raises object_not_in_prerequisite_state when the stage is gone, and insufficient_privilege when it is
-- another user's.
-- Calls: require_own_writer, find_group. Tables: stages (lock), partitions (read), staged_dead_letters (insert,
-- update), queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.stage_dead_letters(
    stage bigint, group_name text, queue_names text[], partition_names text[], offsets bigint[],
    reasons text[], errors text[], of_source boolean,
    payloads bytea[] DEFAULT NULL, keys text[] DEFAULT NULL, headers text[] DEFAULT NULL,
    times timestamptz[] DEFAULT NULL, row_ids text[] DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    writer text;
BEGIN
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(partition_names), cardinality(offsets), cardinality(reasons), cardinality(errors),
        coalesce(cardinality(payloads), cardinality(offsets)), coalesce(cardinality(keys), cardinality(offsets)),
        coalesce(cardinality(headers), cardinality(offsets)), coalesce(cardinality(times), cardinality(offsets)),
        coalesce(cardinality(row_ids), cardinality(offsets))
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'what describes dead letters must be arrays of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT s.writer INTO writer FROM penstock.stages s WHERE s.stage_id = stage FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stage % is gone: another attempt was published, or it was given up', stage
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM penstock.require_own_writer(writer);
    INSERT INTO penstock.staged_dead_letters AS d (
        stage_id, partition_id, message_offset, group_id, of_source, reason, error,
        payload, key, headers, created_at, row_ids
    )
    SELECT
        stage, p.partition_id, w.message_offset, g.group_id, stage_dead_letters.of_source, w.reason, w.error,
        w.payload, w.key, w.headers::jsonb, w.created_at, w.failed_rows
    FROM (
        SELECT DISTINCT ON (w.queue_name, w.partition_name, w.message_offset)
            w.*,
            array_agg(w.row_id) FILTER (WHERE w.row_id IS NOT NULL) OVER (
                PARTITION BY w.queue_name, w.partition_name, w.message_offset
            ) AS failed_rows
        FROM unnest(
            queue_names, partition_names, offsets, reasons, errors, payloads, keys, stage_dead_letters.headers, times,
            stage_dead_letters.row_ids
        ) WITH ORDINALITY w (
            queue_name, partition_name, message_offset, reason, error, payload, key, headers, created_at, row_id, position
        )
        ORDER BY w.queue_name, w.partition_name, w.message_offset, w.position
    ) w
    JOIN (
        SELECT n.queue_name, penstock.find_group(n.queue_name, group_name) AS group_id
        FROM (SELECT DISTINCT q AS queue_name FROM unnest(queue_names) q) n
    ) g ON g.queue_name = w.queue_name
    CROSS JOIN LATERAL (
        SELECT p.partition_id FROM penstock.partitions p
        WHERE p.queue_id = (SELECT q.queue_id FROM penstock.queues q WHERE q.name = w.queue_name)
          AND p.name = w.partition_name
        LIMIT 1
    ) p
    ON CONFLICT (stage_id, partition_id, message_offset) DO UPDATE
    SET row_ids = coalesce(d.row_ids, '{}') || excluded.row_ids
    WHERE NOT coalesce(d.row_ids, '{}') @> excluded.row_ids;
END
$$;
