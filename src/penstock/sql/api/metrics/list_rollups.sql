-- penstock.list_rollups(queue_name, wanted_resolution, metric, max_rows)
--
-- Returns the newest rollups of a queue's series.
--
-- Parameters: wanted_resolution - minute, hour or day; metric - null for all; max_rows - the largest number of rows.
-- Returns: a row per rollup, newest first; raises undefined_object if there is no such queue.
-- Calls: find_queue. Tables: queue_rollups (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_rollups(
    queue_name text, wanted_resolution text DEFAULT 'minute', metric text DEFAULT NULL, max_rows integer DEFAULT 100
)
RETURNS TABLE (
    queue text, resolution text, bucket timestamptz, metric_name text, labels jsonb, samples bigint, total bigint,
    smallest bigint, largest bigint, newest bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM penstock.find_queue(list_rollups.queue_name);
    RETURN QUERY
    SELECT
        r.queue_name, r.resolution, r.bucket, r.metric_name, r.labels, r.samples, r.total, r.smallest, r.largest,
        r.newest
    FROM penstock.queue_rollups r
    WHERE r.queue_name = list_rollups.queue_name AND r.resolution = wanted_resolution
      AND (metric IS NULL OR r.metric_name = metric)
    ORDER BY r.bucket DESC, r.metric_name
    LIMIT max_rows;
END
$$;
