-- penstock.end_waits(target_groups)
--
-- Makes partitions that wait for a delay or a quiet period due now, because that setting has changed: the next sweep
-- puts them in the ready list, or lets them wait by the new setting. Partitions that wait after a failure, or
-- because a message is snoozed, are not changed.
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
        WHERE w.due_at > clock_timestamp() AND w.state = 't' AND w.attempt = 0 AND w.last_error IS NULL
          AND w.group_id = ANY (target_groups)
        -- What somebody holds right now is going on to its next state.
        FOR UPDATE SKIP LOCKED
    ))
$$;
