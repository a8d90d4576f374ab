-- penstock.list_tasks(flow_name)
--
-- Lists the items whose handlers run, as their workers have reported them. A worker that has reported nothing for 30
-- seconds is left out. Short tasks may never be seen here: a worker reports every 5 seconds.
--
-- Parameters: flow_name - null for all.
-- Returns: a row per item, the one that runs longest first. flow_type is UNKNOWN where the action is not registered.
-- Calls: nothing. Tables: running_tasks, actions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_tasks(flow_name text DEFAULT NULL)
RETURNS TABLE (
    worker text, flow text, flow_type text, action text, action_class text, did uuid, message_id uuid, attempt integer,
    started_at timestamptz, running_for double precision, progress double precision, progress_text text,
    heartbeat_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        r.worker, t.flow, coalesce(a.flow_type, 'UNKNOWN'), t.action, t.action_class, t.did, t.message_id, t.attempt,
        t.started_at, extract(epoch FROM clock_timestamp() - t.started_at)::double precision, t.percent, t.text,
        r.heartbeat_at
    FROM penstock.running_tasks r
    CROSS JOIN LATERAL jsonb_to_recordset(r.tasks) t (
        action_class text, flow text, action text, did uuid, message_id uuid, started_at timestamptz, attempt integer,
        percent double precision, text text
    )
    LEFT JOIN penstock.actions a ON a.flow_name = t.flow AND a.action_name = t.action
    WHERE r.heartbeat_at > clock_timestamp() - interval '30 seconds'
      AND (list_tasks.flow_name IS NULL OR t.flow = list_tasks.flow_name)
    ORDER BY t.started_at, r.worker
$$;
