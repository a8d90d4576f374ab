-- penstock.total_series(begin_at, end_at, step, queue_names)
--
-- Adds up what clients have counted in all queues or some, by steps of time, for a chart of the whole database. It reads the
-- values of that time alone, by the index of each queue.
--
-- Parameters: begin_at, end_at - the time, a day at most; step - its length in seconds, a minute at least; queue_names
-- - which queues; null for all.
-- Returns: a row per step and metric that has values: pushed, delivered, acked, failed, dead_lettered.
-- Calls: nothing. Tables: queues, queue_metrics (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.total_series(
    begin_at timestamptz, end_at timestamptz, step float8 DEFAULT 60, queue_names text[] DEFAULT NULL
)
RETURNS TABLE (bucket timestamptz, metric_name text, total bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    IF (step >= 60 AND begin_at < end_at AND end_at - begin_at <= interval '1 day') IS NOT TRUE THEN
        RAISE EXCEPTION 'step is % and must be 60 at least; begin_at is % and must be a day before end_at at most, which is %',
            step, begin_at, end_at
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN QUERY
    SELECT
        date_bin(make_interval(secs => step), m."timestamp", timestamptz '2000-01-01 00:00:00+00'), m.metric_name,
        sum(m.metric_value)::bigint
    FROM penstock.queues q
    JOIN penstock.queue_metrics m ON m.queue_name = q.name AND m."timestamp" >= begin_at AND m."timestamp" < end_at
        AND m.metric_name IN ('pushed', 'delivered', 'acked', 'failed', 'dead_lettered')
    WHERE queue_names IS NULL OR q.name = ANY (queue_names)
    GROUP BY 1, 2
    ORDER BY 1, 2;
END
$$;
