-- penstock.list_flows()
--
-- Lists flows and their status. Of the messages that a flow has not published, `warm` are admitted to an epoch and
-- `cold` are not; both are subtracted, not counted.
--
-- Returns: a row per flow, by name. The state is `lost` if its supervisor has sent no heartbeat for 15 seconds, and
-- `paused` also if no supervisor runs a flow that is to pause. A flow of actions that workers run is `paused`, or `running`
-- while they hold some of its messages (which are its `warm` ones), otherwise `idle`.
-- Calls: group_summary. Tables: flows, actions, flow_states, queues, consumer_groups, dead_letters, epoch_sources, snapshots,
-- sink_runs (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_flows()
RETURNS TABLE (
    name text, flow_type text, state text, since timestamptz, paused boolean, lag bigint, warm bigint, cold bigint,
    oldest_since timestamptz, rows_per_second double precision, epoch bigint, epoch_at timestamptz, dead_letters bigint,
    failures integer, error text, retry_at timestamptz, sources text[], outputs text[], checkpoint text,
    supervisor text, heartbeat_at timestamptz, late_rows bigint
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        f.name, f.flow_type,
        CASE
            WHEN f.checkpoint = '' THEN CASE WHEN f.paused THEN 'paused' WHEN w.claimed > 0 THEN 'running' ELSE 'idle' END
            WHEN f.paused AND (coalesce(s.state, 'stopped') IN ('stopped', 'finished') OR h.is_lost) THEN 'paused'
            WHEN h.is_lost THEN 'lost'
            ELSE coalesce(s.state, 'stopped')
        END,
        s.since, f.paused, w.lag, least(a.admitted, w.lag), greatest(w.lag - a.admitted, 0), w.oldest_since,
        coalesce(s.rows_per_second, 0), s.epoch, s.epoch_at, w.dead_letters,
        coalesce(s.failures, 0), s.error, s.retry_at, f.sources, f.outputs, f.checkpoint, s.supervisor, s.heartbeat_at,
        coalesce(s.late_rows, 0)
    FROM penstock.flows f
    LEFT JOIN penstock.flow_states s ON s.flow_name = f.name
    CROSS JOIN LATERAL (
        SELECT s.state NOT IN ('stopped', 'finished', 'failed')
            AND s.heartbeat_at < clock_timestamp() - interval '15 seconds' AS is_lost
    ) h
    CROSS JOIN LATERAL (
        SELECT
            coalesce(sum(w.lag), 0)::bigint AS lag, min(w.oldest_since) AS oldest_since,
            coalesce(sum(w.claimed), 0)::bigint AS claimed,
            coalesce(sum((SELECT count(*) FROM penstock.dead_letters d WHERE d.group_id = g.group_id)), 0)::bigint
                AS dead_letters
        FROM penstock.queues q
        JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id AND CASE
            WHEN f.checkpoint <> '' THEN g.name = f.name
            ELSE g.name IN (
                SELECT a.flow_name || '.' || a.action_name FROM penstock.actions a
                WHERE a.flow_name = f.name AND a.queue = q.name
            )
        END
        CROSS JOIN LATERAL (
            SELECT s.lag, s.lag - s.depth AS claimed, s.oldest_since FROM penstock.group_summary(g.group_id) s
        ) w
        WHERE q.name = ANY (f.sources)
    ) w
    CROSS JOIN LATERAL (
        SELECT CASE WHEN f.checkpoint = '' THEN w.claimed ELSE coalesce(sum(u.stop - u.start), 0) END::bigint AS admitted
        FROM penstock.epoch_sources e
        JOIN penstock.snapshots n ON n.snapshot_id = e.snapshot_id
        CROSS JOIN LATERAL unnest(n.starts, n.ends) u (start, stop)
        WHERE e.writer = f.writer
          AND e.run = (
              SELECT r.run FROM penstock.sink_runs r WHERE r.writer = f.writer ORDER BY r.run_number DESC LIMIT 1
          )
    ) a
    ORDER BY f.name
$$;
