-- penstock.reader_positions(queue_names, group_name)
--
-- Returns how far a group has read each partition that it knows, so that a reader that lost its own positions can
-- continue.
--
-- Parameters: queue_names - a queue that has no such group has no rows; group_name.
-- Returns: one row of parallel arrays: partition ids and positions.
-- Calls: newest_state. Tables: queues, consumer_groups, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.reader_positions(queue_names text[], group_name text)
RETURNS TABLE (partition_ids bigint[], positions bigint[])
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT array_agg(p.partition_id), array_agg(j.committed)
    FROM penstock.queues q
    JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id AND g.name = group_name
    JOIN penstock.partitions p ON p.queue_id = q.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
    CROSS JOIN LATERAL penstock.newest_state(g.group_id, p.partition_id) j
    WHERE q.name = ANY (queue_names)
$$;
