-- penstock.archived_letters(stage)
--
-- Returns the messages of a stage that are to become dead letters and are no longer in the log. The caller reads them
-- from the archive and passes them to copy_letters.
--
-- Parameters: stage - its id.
-- Returns: a row per message.
-- Calls: partition_span. Tables: staged_dead_letters, partitions, queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.archived_letters(stage bigint)
RETURNS TABLE (queue_name text, partition_name text, partition_id bigint, message_offset bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT q.name, p.name, d.partition_id, d.message_offset
    FROM penstock.staged_dead_letters d
    JOIN penstock.partitions p ON p.partition_id = d.partition_id
    JOIN penstock.queues q ON q.queue_id = p.queue_id
    CROSS JOIN LATERAL penstock.partition_span(d.partition_id) s
    WHERE d.stage_id = stage AND d.created_at IS NULL AND d.message_offset < s.floor_offset
    ORDER BY d.partition_id, d.message_offset
$$;
