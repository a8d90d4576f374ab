-- penstock.source_places(partition_ids)
--
-- Returns the names and positions of partitions.
--
-- Parameters: partition_ids.
-- Returns: a row for each that exists.
-- Calls: partition_span. Tables: queues, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.source_places(partition_ids bigint[])
RETURNS TABLE (partition_id bigint, queue_name text, partition_name text, floor_offset bigint, head_offset bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT
        w.partition_id, (SELECT q.name FROM penstock.queues q WHERE q.queue_id = p.queue_id), p.name,
        s.floor_offset, s.head_offset
    FROM unnest(partition_ids) w (partition_id)
    -- LIMIT: a plain join, planned for a small table, goes through all of it.
    CROSS JOIN LATERAL (
        SELECT p.queue_id, p.name FROM penstock.partitions p WHERE p.partition_id = w.partition_id LIMIT 1
    ) p
    CROSS JOIN LATERAL penstock.partition_span(w.partition_id) s
$$;
