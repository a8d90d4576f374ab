-- penstock.list_actions(flow_name)
--
-- Lists the actions of a flow, or of all flows, each with its class and the plugin that provides it.
--
-- Parameters: flow_name - null for all.
-- Returns: a row per action, by flow and in the flow's order.
-- Calls: nothing. Tables: actions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_actions(flow_name text DEFAULT NULL)
RETURNS TABLE (flow text, flow_type text, action text, action_class text, plugin text, registered_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT a.flow_name, a.flow_type, a.action_name, a.action_class, a.plugin, a.registered_at
    FROM penstock.actions a
    WHERE list_actions.flow_name IS NULL OR a.flow_name = list_actions.flow_name
    ORDER BY a.flow_name, a.position
$$;
