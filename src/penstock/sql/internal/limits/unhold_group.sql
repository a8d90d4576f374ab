-- penstock.unhold_group(target_group)
--
-- Lets a group that was held have messages again, and says so to those who wait for them.
--
-- Parameters: target_group.
-- Returns: whether it was held.
-- Calls: refresh_gate, send_hint. Tables: consumer_groups (update).
CREATE OR REPLACE FUNCTION penstock.unhold_group(target_group integer)
RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE penstock.consumer_groups g
    SET held_at = NULL, held_until = NULL, probing = false
    WHERE g.group_id = target_group AND g.held_until IS NOT NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM penstock.refresh_gate(target_group);
    PERFORM penstock.send_hint(target_group);
    RETURN true;
END
$$;
