-- penstock.purge(queue_name, partition_name)
--
-- Drops all messages of a queue or of one partition, including scheduled ones, and deletes their dedupe ids and unique
-- keys. Offsets continue from where they were: no offset is used twice. Pushes are blocked only in partitions that have
-- scheduled messages, dedupe ids or unique keys; messages that they add meanwhile stay.
--
-- Parameters: partition_name - null for all partitions of the queue.
-- Returns: the number of messages dropped.
-- Calls: find_queue, find_partition, use_lock_timeout, forget_pushes, partition_span, drop_below. Tables: partitions
-- (lock), scheduled, dedupe_ids, unique_keys (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.purge(queue_name text, partition_name text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    queue  integer := penstock.find_queue(queue_name);
    wanted bigint := CASE
        WHEN partition_name IS NOT NULL THEN penstock.find_partition(queue_name, partition_name)
    END;
    pushed bigint[];
BEGIN
    PERFORM penstock.use_lock_timeout();
    -- Locked before any segment is, in the order of a push.
    pushed := ARRAY(
        SELECT p.partition_id FROM penstock.partitions p
        WHERE p.queue_id = queue AND (wanted IS NULL OR p.partition_id = wanted) AND p.partition_id IN (
            SELECT s.partition_id FROM penstock.scheduled s WHERE s.queue_id = queue
            UNION ALL
            SELECT k.partition_id FROM penstock.dedupe_ids k WHERE k.queue_id = queue
            UNION ALL
            SELECT k.partition_id FROM penstock.unique_keys k WHERE k.queue_id = queue
        )
        ORDER BY p.partition_id
        FOR NO KEY UPDATE
    );
    RETURN penstock.forget_pushes(pushed) + (
        SELECT coalesce(sum(d.dropped_messages), 0)::bigint
        FROM (
            -- In the order of maintain, which locks segments too.
            SELECT p.partition_id FROM penstock.partitions p
            WHERE p.queue_id = queue AND (wanted IS NULL OR p.partition_id = wanted)
            ORDER BY p.partition_id
            OFFSET 0
        ) p
        CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
        CROSS JOIN LATERAL penstock.drop_below(p.partition_id, s.head_offset, NULL) d
    );
END
$$;
