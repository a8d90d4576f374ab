-- penstock.list_series(queue_name, metric, group_name, begin_at, end_at, max_points)
--
-- Returns a series of a queue or group for a chart: the values of each step of time together, at most `max_points`
-- steps. Older values than the queue's metrics_retention come from rollups, by minute, hour or day as the step allows.
-- Without a group the values of all groups are added up.
--
-- Parameters: metric - its name; group_name - null for that of the queue, or for all of its groups; begin_at, end_at -
-- the time; max_points - the largest number of steps, up to 1000. A step is a minute or a multiple of it.
-- Returns: a row per step that has values, the first one first: `bucket` (when it begins), `step` (its length in
-- seconds), how many values there were, their sum, and smallest, largest and newest value. Where there are several
-- groups, these are added up, too. Raises undefined_object if there is no such queue.
-- Calls: find_queue, policy_clock. Tables: queues, queue_metrics, queue_rollups (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_series(
    queue_name text, metric text, group_name text, begin_at timestamptz, end_at timestamptz,
    max_points integer DEFAULT 120
)
RETURNS TABLE (
    bucket timestamptz, step float8, samples bigint, total bigint, smallest bigint, largest bigint, newest bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    zero    constant timestamptz := '2000-01-01 00:00:00+00';
    wanted  integer := penstock.find_queue(list_series.queue_name);
    now_at  timestamptz := penstock.policy_clock();
    kept    timestamptz;
    seconds float8;
    source  text;
    width   interval;
BEGIN
    IF (max_points BETWEEN 1 AND 1000 AND begin_at < end_at AND isfinite(begin_at) AND isfinite(end_at)) IS NOT TRUE THEN
        RAISE EXCEPTION 'max_points is % and must be from 1 to 1000; begin_at is % and must be before end_at, which is %',
            max_points, begin_at, end_at
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT now_at - make_interval(secs => coalesce((q.settings ->> 'metrics_retention')::float8, 604800)) INTO kept
    FROM penstock.queues q
    WHERE q.queue_id = wanted;
    seconds := extract(epoch FROM end_at - begin_at) / max_points;
    source := CASE
        WHEN begin_at >= kept OR begin_at >= now_at - interval '30 days' AND seconds < 3600 THEN 'minute'
        WHEN begin_at >= now_at - interval '1 year' AND seconds < 86400 THEN 'hour'
        ELSE 'day'
    END;
    -- Round lengths of time, so that the same value lies in the same step whenever somebody looks.
    SELECT u.s INTO seconds
    FROM unnest(ARRAY[60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400]::float8[]) u (s)
    WHERE u.s >= seconds AND u.s >= CASE source WHEN 'minute' THEN 60 WHEN 'hour' THEN 3600 ELSE 86400 END
    ORDER BY u.s
    LIMIT 1;
    seconds := coalesce(seconds, 86400 * ceil(extract(epoch FROM end_at - begin_at) / max_points / 86400));
    width := make_interval(secs => seconds);
    RETURN QUERY
    WITH found AS (
        SELECT
            date_bin(width, m."timestamp", zero) AS bucket, coalesce(m.labels ->> 'group', '') AS member,
            m."timestamp" AS at, 1::bigint AS samples, m.metric_value AS total, m.metric_value AS smallest,
            m.metric_value AS largest, m.metric_value AS newest
        FROM penstock.queue_metrics m
        WHERE m.queue_name = list_series.queue_name AND m.metric_name = metric
          AND m."timestamp" >= greatest(begin_at, kept) AND m."timestamp" < end_at
          AND (group_name IS NULL OR m.labels ->> 'group' = group_name)
        UNION ALL
        SELECT
            date_bin(width, r.bucket, zero), coalesce(r.labels ->> 'group', ''), r.bucket, r.samples, r.total,
            r.smallest, r.largest, r.newest
        FROM penstock.queue_rollups r
        WHERE r.queue_name = list_series.queue_name AND r.metric_name = metric AND r.resolution = source
          AND r.bucket >= begin_at AND r.bucket < least(end_at, kept)
          AND (group_name IS NULL OR r.labels ->> 'group' = group_name)
    ), members AS (
        SELECT
            f.bucket, f.member, sum(f.samples) AS samples, sum(f.total) AS total, min(f.smallest) AS smallest,
            max(f.largest) AS largest, (array_agg(f.newest ORDER BY f.at DESC))[1] AS newest
        FROM found f
        GROUP BY f.bucket, f.member
    )
    SELECT s.*
    FROM (
        SELECT
            m.bucket, seconds, sum(m.samples)::bigint, sum(m.total)::bigint, sum(m.smallest)::bigint,
            sum(m.largest)::bigint, sum(m.newest)::bigint
        FROM members m
        GROUP BY m.bucket
        ORDER BY m.bucket DESC
        LIMIT max_points
    ) s
    ORDER BY s.bucket;
END
$$;
