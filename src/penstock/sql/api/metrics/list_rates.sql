-- penstock.list_rates(period)
--
-- Adds up what clients have counted in the last seconds, by queue and group. They record their counts once a minute
-- where much is done, else every five minutes, so a shorter period than that finds nothing now and then.
--
-- Parameters: period - in seconds.
-- Returns: a row per queue, metric and group that has a value: its sum, and the time of the newest value. A metric of the
-- queue itself has no group.
-- Calls: policy_clock. Tables: queues, queue_metrics (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_rates(period float8 DEFAULT 300)
RETURNS TABLE (queue text, consumer_group text, metric_name text, total bigint, newest_at timestamptz)
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
DECLARE
    now_at timestamptz := penstock.policy_clock();
BEGIN
    IF (period > 0 AND period <= 86400) IS NOT TRUE THEN
        RAISE EXCEPTION 'period is % and must be above 0 and at most 86400', period
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN QUERY
    SELECT q.name, m.labels ->> 'group', m.metric_name, sum(m.metric_value)::bigint, max(m."timestamp")
    FROM penstock.queues q
    JOIN penstock.queue_metrics m ON m.queue_name = q.name
        AND m."timestamp" > now_at - make_interval(secs => period)
        AND m.metric_name IN ('pushed', 'delivered', 'acked', 'failed', 'dead_lettered')
    GROUP BY q.name, m.labels ->> 'group', m.metric_name
    ORDER BY q.name, 2, 3;
END
$$;
