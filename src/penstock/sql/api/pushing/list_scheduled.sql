-- penstock.list_scheduled(queue_name, partition_name, after_due, after_id, max_rows)
--
-- Lists scheduled messages, the first to be due first, a page at a time. A row is what one push gave to one
-- partition, or a part of it if that was large.
--
-- Parameters: queue_name and partition_name - null for all; after_due and after_id - the last row of the page before;
-- max_rows - the largest number of rows.
-- Returns: a row per scheduled segment; preview is the beginning of its first message, null if the value is null.
-- Calls: find_queue, find_partition, end_at, null_flags. Tables: scheduled, queues, partitions (read).
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.list_scheduled(
    queue_name     text        DEFAULT NULL,
    partition_name text        DEFAULT NULL,
    after_due      timestamptz DEFAULT '-infinity',
    after_id       bigint      DEFAULT 0,
    max_rows       integer     DEFAULT 100
)
RETURNS TABLE (
    scheduled_id bigint, queue text, partition text, due_at timestamptz, created_at timestamptz,
    message_count integer, bytes integer, preview bytea
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- A generic plan would go through all queues for one.
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    -- Looked up before and not within the query, where an empty table would keep it from being asked at all.
    wanted_queue integer := CASE WHEN queue_name IS NOT NULL THEN penstock.find_queue(queue_name) END;
    wanted       bigint := CASE
        WHEN partition_name IS NOT NULL THEN penstock.find_partition(queue_name, partition_name)
    END;
BEGIN
    RETURN QUERY
    SELECT
        s.scheduled_id, q.name, p.name, s.due_at, s.created_at, s.count, s.bytes,
        CASE WHEN get_byte(penstock.null_flags(s.count, s.ends), 0) = 1 THEN NULL
             ELSE substring(s.body FROM 1 FOR least(penstock.end_at(s.ends, 0, s.bytes), 100)) END
    FROM (
        SELECT * FROM penstock.scheduled s
        WHERE (wanted_queue IS NULL OR s.queue_id = wanted_queue)
          AND (wanted IS NULL OR s.partition_id = wanted)
          AND (s.due_at, s.scheduled_id) > (after_due, after_id)
        ORDER BY s.due_at, s.scheduled_id
        LIMIT max_rows
    ) s
    JOIN penstock.queues q ON q.queue_id = s.queue_id
    JOIN penstock.partitions p ON p.partition_id = s.partition_id
    ORDER BY s.due_at, s.scheduled_id;
END
$$;
