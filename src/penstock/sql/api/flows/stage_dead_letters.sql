-- penstock.stage_dead_letters(stage, group_name, queue_names, partition_names, offsets, reasons, errors, of_source,
--                             payloads, keys, headers, times, row_ids)
--
-- Stages dead letters: messages that become dead letters of a group when their epoch is published. To stage the same
-- message again does nothing.
--
-- Parameters: stage - of the same epoch; group_name - whose dead letters; queue_names, partition_names, offsets,
-- reasons, errors - the messages, as parallel arrays; of_source - whether the failure depends on the message alone,
-- so that it counts whichever attempt of a task reports it; payloads, keys, headers (JSON), times - copies of
-- messages that may no longer be in the log; row_ids - the row that failed, if it is made of several messages. A
-- message that is given several times failed with several rows.
-- Returns: nothing; raises object_not_in_prerequisite_state if the stage is gone, and insufficient_privilege if it
-- belongs to another user.
-- Calls: lock_stage, find_group. Tables: partitions, queues (read), staged_dead_letters (insert, update).
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
BEGIN
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(partition_names), cardinality(offsets), cardinality(reasons), cardinality(errors),
        coalesce(cardinality(payloads), cardinality(offsets)), coalesce(cardinality(keys), cardinality(offsets)),
        coalesce(cardinality(headers), cardinality(offsets)), coalesce(cardinality(times), cardinality(offsets)),
        coalesce(cardinality(row_ids), cardinality(offsets))
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'the arrays that describe dead letters must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.lock_stage(stage);
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
