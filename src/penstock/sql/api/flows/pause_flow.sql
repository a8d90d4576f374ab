-- penstock.pause_flow(flow_name, paused)
--
-- Pauses a flow or lets it continue. Its supervisor checks about once a second. A flow that pauses ends its epoch
-- without publishing it, and reads the same messages again when it continues. To actions that workers run nothing more is
-- delivered; what they have is settled as ever. A group that is paused by itself stays so.
--
-- Parameters: flow_name; paused.
-- Returns: nothing; raises undefined_object when there is no such flow.
-- Calls: pause_actions. Tables: flows (update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.pause_flow(flow_name text, paused boolean)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE penstock.flows f SET paused = pause_flow.paused WHERE f.name = flow_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no flow "%"', flow_name
            USING ERRCODE = 'undefined_object', HINT = '"penstock flows" lists those there are.';
    END IF;
    -- A new statement, hence a new snapshot: a group that was created while we waited for the flow is among them.
    PERFORM penstock.pause_actions(flow_name);
END
$$;
