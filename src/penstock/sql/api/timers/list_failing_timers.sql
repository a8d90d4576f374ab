-- penstock.list_failing_timers()
--
-- Lists the timers that failed and were postponed, the first to fail first.
--
-- Returns: a row per timer: its kind (see serve_timer; 'maintenance' of a partition is tried with every pass, 'sweep'
-- is the sweep as a whole), its queue, group, partition and place if it has them, since when and how often it failed,
-- when it is tried again, and the error.
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
