-- penstock.hold_group(target_group, until, probing)
--
-- Delivers nothing to a group until a time, as a circuit breaker wants it. Claims that are held go on.
--
-- Parameters: target_group; until - by policy_clock, 'infinity' for until it is unheld; probing - deliver one message when
-- the time has come, and hold the group for as long again: what comes of it decides whether it is unheld. Without it, the
-- time ends the hold.
-- Returns: nothing.
-- Calls: policy_clock, refresh_gate. Tables: consumer_groups (update).
CREATE OR REPLACE FUNCTION penstock.hold_group(target_group integer, until timestamptz, probing boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE penstock.consumer_groups g
    SET held_at = penstock.policy_clock(), held_until = until, probing = hold_group.probing
    WHERE g.group_id = target_group;
    PERFORM penstock.refresh_gate(target_group);
END
$$;
