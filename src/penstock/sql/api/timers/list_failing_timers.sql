-- penstock.list_failing_timers()
--
-- The timers that failed and were put off, the first to fail first.
--
-- Returns: a row per timer: what it is (see serve_timer; 'maintenance' is that of a partition, which is tried with every
-- pass, 'sweep' the sweep as a whole), its queue, group, partition and place as far as it has them, since
-- when it fails and how often it did, when it is tried again, and the error.
-- Calls: nothing. Tables: failing_timers, consumer_groups, partitions, queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_failing_timers()
RETURNS TABLE (
    kind text, queue_name text, group_name text, partition_name text, place bigint,
    since timestamptz, failures integer, retry_at timestamptz, sqlstate text, error text
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        f.kind, q.name, g.name, p.name, nullif(f.place, 0), f.since, f.failures, f.retry_at, f.sqlstate, f.error
    FROM penstock.failing_timers f
    LEFT JOIN penstock.consumer_groups g ON g.group_id = f.group_id
    LEFT JOIN penstock.partitions p ON p.partition_id = f.partition_id
    LEFT JOIN penstock.queues q ON q.queue_id = coalesce(p.queue_id, g.queue_id)
    ORDER BY f.since, f.kind, f.place
$$;
