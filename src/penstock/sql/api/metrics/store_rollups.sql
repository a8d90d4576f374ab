-- penstock.store_rollups(queue_names, resolutions, buckets, metric_names, labels, samples, totals, smallest, largest,
--                        newest)
--
-- Stores what `penstock rollup` made of the series of queues. One that was made before of the same minute, hour or day
-- is replaced, so a rollup may be repeated. One of more values stays: those may have been dropped by retention since.
--
-- Parameters: parallel arrays, an entry per rollup; resolutions - minute, hour or day; buckets - when it begins.
-- Returns: how many were stored; those of queues that do not exist are left out.
-- Calls: nothing. Tables: queues (read), queue_rollups (insert, update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.store_rollups(
    queue_names text[], resolutions text[], buckets timestamptz[], metric_names text[], labels jsonb[],
    samples bigint[], totals bigint[], smallest bigint[], largest bigint[], newest bigint[]
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    stored bigint;
BEGIN
    INSERT INTO penstock.queue_rollups AS r (
        queue_name, resolution, bucket, metric_name, labels, samples, total, smallest, largest, newest
    )
    SELECT q.name, u.resolution, u.bucket, u.metric, coalesce(u.label, '{}'), u.samples, u.total, u.low, u.high, u.newest
    FROM unnest(
        queue_names, resolutions, buckets, metric_names, store_rollups.labels, store_rollups.samples, totals,
        store_rollups.smallest, store_rollups.largest, store_rollups.newest
    ) u (queue, resolution, bucket, metric, label, samples, total, low, high, newest)
    JOIN penstock.queues q ON q.name = u.queue
    ON CONFLICT (queue_name, resolution, bucket, metric_name, labels) DO UPDATE SET
        samples = excluded.samples, total = excluded.total, smallest = excluded.smallest,
        largest = excluded.largest, newest = excluded.newest
    WHERE excluded.samples >= r.samples
      AND (r.samples, r.total, r.smallest, r.largest, r.newest)
          <> (excluded.samples, excluded.total, excluded.smallest, excluded.largest, excluded.newest);
    GET DIAGNOSTICS stored = ROW_COUNT;
    RETURN stored;
END
$$;
