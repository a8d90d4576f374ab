-- penstock.heartbeat_flow(flow_name, supervisor, state, failures, error, retry_at, epoch, rows_per_second, take_over)
--
-- Records a supervisor's heartbeat and the status of a flow; a supervisor that holds a flow calls it every few
-- seconds, and at most once a second. The first supervisor to call holds the flow, until it reports that the flow has
-- stopped, finished or failed, or sends no heartbeat for 15 seconds.
--
-- Parameters: supervisor - who calls; state - starting, running, backing off, failed, paused, stopped or finished;
-- take_over - whether the one who holds it is known to be dead; the others as the columns of flow_states.
-- Returns: one row: who holds the flow now (somebody else: nothing was written), and whether it shall be paused.
-- Calls: nothing. Tables: flows (read), flow_states (insert, update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.heartbeat_flow(
    flow_name text, supervisor text, state text, failures integer DEFAULT 0, error text DEFAULT NULL,
    retry_at timestamptz DEFAULT NULL, epoch bigint DEFAULT NULL, rows_per_second double precision DEFAULT 0,
    take_over boolean DEFAULT false, late_rows bigint DEFAULT 0
)
RETURNS TABLE (holder text, paused boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO penstock.flow_states AS s (
        flow_name, supervisor, state, failures, error, retry_at, epoch, epoch_at, rows_per_second, late_rows
    ) VALUES (
        heartbeat_flow.flow_name, heartbeat_flow.supervisor, heartbeat_flow.state, heartbeat_flow.failures,
        heartbeat_flow.error, heartbeat_flow.retry_at, heartbeat_flow.epoch,
        CASE WHEN heartbeat_flow.epoch IS NOT NULL THEN clock_timestamp() END,
        heartbeat_flow.rows_per_second, heartbeat_flow.late_rows
    )
    ON CONFLICT (flow_name) DO UPDATE SET
        supervisor = excluded.supervisor, state = excluded.state, failures = excluded.failures,
        error = coalesce(excluded.error, CASE WHEN excluded.state <> 'running' THEN s.error END),
        retry_at = excluded.retry_at,
        epoch = coalesce(excluded.epoch, s.epoch),
        epoch_at = CASE
            WHEN excluded.epoch IS DISTINCT FROM s.epoch AND excluded.epoch IS NOT NULL THEN clock_timestamp()
            ELSE s.epoch_at
        END,
        rows_per_second = excluded.rows_per_second, late_rows = greatest(excluded.late_rows, s.late_rows),
        since = CASE WHEN excluded.state <> s.state THEN clock_timestamp() ELSE s.since END,
        heartbeat_at = clock_timestamp()
    WHERE s.supervisor = excluded.supervisor OR s.state IN ('stopped', 'finished', 'failed')
       OR s.heartbeat_at < clock_timestamp() - interval '15 seconds' OR take_over;
    RETURN QUERY
    SELECT s.supervisor, coalesce(f.paused, false)
    FROM penstock.flow_states s
    LEFT JOIN penstock.flows f ON f.name = s.flow_name
    WHERE s.flow_name = heartbeat_flow.flow_name;
END
$$;
