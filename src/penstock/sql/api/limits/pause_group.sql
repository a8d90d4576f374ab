-- penstock.pause_group(queue_name, group_name, paused)
--
-- Pauses delivery to a group, or resumes it. What is claimed already can be settled as ever, and pushes go on. It sets the
-- group's setting `paused`.
--
-- Parameters: the names; paused - false to resume.
-- Returns: whether that changed anything; raises undefined_object when there is no such group.
-- Calls: find_group, refresh_gate, send_hint. Tables: consumer_groups (update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.pause_group(queue_name text, group_name text, paused boolean DEFAULT true)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target  integer := penstock.find_group(queue_name, group_name);
    changed boolean;
BEGIN
    IF paused IS NULL THEN
        RAISE EXCEPTION 'paused must be true or false' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE penstock.consumer_groups g
    SET config = CASE WHEN pause_group.paused THEN g.config || '{"paused": true}' ELSE g.config - 'paused' END
    WHERE g.group_id = target AND g.config @> '{"paused": true}' <> pause_group.paused;
    changed := FOUND;
    IF changed THEN
        PERFORM penstock.refresh_gate(target);
        PERFORM penstock.send_hint(target);
    END IF;
    RETURN changed;
END
$$;
