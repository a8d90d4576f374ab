-- penstock.list_metrics(queue_name, metric, since, max_rows)
--
-- Returns the newest values of a queue's series: one range of an index, whatever is stored.
--
-- Parameters: metric - null for all of them; since - the earliest time; max_rows - the largest number of rows.
-- Returns: a row per value, newest first; raises undefined_object if there is no such queue.
-- Calls: find_queue. Tables: queue_metrics (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_metrics(
    queue_name text, metric text DEFAULT NULL, since timestamptz DEFAULT '-infinity', max_rows integer DEFAULT 100
)
RETURNS TABLE (metric_name text, metric_value bigint, "timestamp" timestamptz, labels jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_sort = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM penstock.find_queue(list_metrics.queue_name);
    RETURN QUERY
    SELECT m.metric_name, m.metric_value, m."timestamp", m.labels
    FROM penstock.queue_metrics m
    WHERE m.queue_name = list_metrics.queue_name AND m."timestamp" >= list_metrics.since
      AND (metric IS NULL OR m.metric_name = metric)
    ORDER BY m."timestamp" DESC
    LIMIT max_rows;
END
$$;
