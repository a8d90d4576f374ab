-- penstock.measured_queues(since)
--
-- Lists the queues that have values in queue_metrics from a time on: what `penstock rollup` has to read.
--
-- Parameters: since - the time.
-- Returns: their names, in order.
-- Calls: nothing. Tables: queues, queue_metrics (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.measured_queues(since timestamptz DEFAULT '-infinity')
RETURNS TABLE (queue text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT q.name
    FROM penstock.queues q
    WHERE EXISTS (
        SELECT 1 FROM penstock.queue_metrics m
        WHERE m.queue_name = q.name AND m."timestamp" >= measured_queues.since
    )
    ORDER BY q.name
$$;
