-- penstock.forget_flow(flow_name)
--
-- Removes a flow from the registry, with its state. Its groups, their dead letters and its queues stay.
--
-- Parameters: flow_name.
-- Returns: nothing; raises undefined_object when there is no such flow, and object_in_use while it runs.
-- Calls: pause_actions. Tables: flows, actions, flow_states, poison (delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.forget_flow(flow_name text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF EXISTS (
        SELECT 1 FROM penstock.flow_states s
        WHERE s.flow_name = forget_flow.flow_name AND s.state NOT IN ('stopped', 'finished', 'failed')
          AND s.heartbeat_at > clock_timestamp() - interval '15 seconds'
    ) THEN
        RAISE EXCEPTION 'flow "%" is being run by a supervisor', forget_flow.flow_name
            USING ERRCODE = 'object_in_use', HINT = 'Stop `penstock run` first.';
    END IF;
    -- Its groups stay, and nobody could resume them.
    UPDATE penstock.flows f SET paused = false WHERE f.name = forget_flow.flow_name AND f.paused;
    IF FOUND THEN
        PERFORM penstock.pause_actions(forget_flow.flow_name);
    END IF;
    DELETE FROM penstock.flows f WHERE f.name = forget_flow.flow_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no flow "%"', forget_flow.flow_name
            USING ERRCODE = 'undefined_object', HINT = '"penstock flows" lists those there are.';
    END IF;
    DELETE FROM penstock.actions a WHERE a.flow_name = forget_flow.flow_name;
    DELETE FROM penstock.flow_states s WHERE s.flow_name = forget_flow.flow_name;
    DELETE FROM penstock.poison p WHERE p.flow_name = forget_flow.flow_name;
END
$$;
