-- penstock.stage_dead_letters(stage, group_name, queue_names, partition_names, offsets, reasons, errors, of_source)
--
-- Says of messages that they become dead letters of a group when their epoch is published, and not before. Calling it
-- again with the same messages does nothing.
--
-- Parameters: stage - of the same epoch; group_name - whose dead letters; queue_names, partition_names, offsets -
-- which messages, as parallel arrays, with reasons and errors; of_source - whether it depends on the message alone, so
-- that it counts whichever attempt of a task says so.
-- Returns: nothing; raises object_not_in_prerequisite_state when the stage is gone.
-- Calls: find_group. Tables: stages (lock), partitions (read), staged_dead_letters (insert).
CREATE OR REPLACE FUNCTION penstock.stage_dead_letters(
    stage bigint, group_name text, queue_names text[], partition_names text[], offsets bigint[],
    reasons text[], errors text[], of_source boolean
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
        cardinality(partition_names), cardinality(offsets), cardinality(reasons), cardinality(errors)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'queue_names, partition_names, offsets, reasons and errors must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM 1 FROM penstock.stages s WHERE s.stage_id = stage FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stage % is gone: another attempt was published, or it was given up', stage
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    INSERT INTO penstock.staged_dead_letters (
        stage_id, partition_id, message_offset, group_id, of_source, reason, error
    )
    SELECT stage, p.partition_id, w.message_offset, g.group_id, stage_dead_letters.of_source, w.reason, w.error
    FROM unnest(queue_names, partition_names, offsets, reasons, errors)
        w (queue_name, partition_name, message_offset, reason, error)
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
    ON CONFLICT DO NOTHING;
END
$$;
