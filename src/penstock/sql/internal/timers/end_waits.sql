-- penstock.end_waits(target_groups)
--
-- Lets partitions that wait for a delay or a quiet period be looked at by the next sweep, because that setting has changed:
-- it puts them in the ready list, or lets them wait for as long as the setting says now. What waits after a failure goes on waiting.
--
-- Parameters: target_groups - group ids.
-- Returns: nothing.
-- Calls: nothing. Tables: journal (update).
CREATE OR REPLACE FUNCTION penstock.end_waits(target_groups integer[])
RETURNS void
LANGUAGE sql
AS $$
    UPDATE penstock.journal j
    SET due_at = clock_timestamp()
    WHERE j.ctid = ANY (ARRAY(
        SELECT w.ctid FROM penstock.journal w
        WHERE w.due_at > clock_timestamp() AND w.state = 't' AND w.attempt = 0 AND w.group_id = ANY (target_groups)
        -- What somebody holds right now is going on to its next state.
        FOR UPDATE SKIP LOCKED
    ))
$$;
