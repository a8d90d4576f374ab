-- penstock.sweep_timer(target_group, target, timer_version, timer_state)
--
-- Fires one timer of the journal: the partition changes to its next state, unless somebody else is changing it.
--
-- Parameters: the journal row that has the timer.
-- Returns: whether it was fired; false if a lock was not available, or if the state has changed already: a later
-- sweep tries again.
-- Calls: expire_claim, append_state, deliverable, newest_state. Tables: journal, partitions (lock), queues,
-- consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.sweep_timer(
    target_group integer, target bigint, timer_version bigint, timer_state "char"
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    newest penstock.journal;
    ready  record;
BEGIN
    -- Who may append the next row: for a parked partition the holder of its lock, else that of the newest row's.
    IF timer_state = 'p' THEN
        PERFORM 1 FROM penstock.partitions p WHERE p.partition_id = target FOR NO KEY UPDATE SKIP LOCKED;
    ELSE
        PERFORM 1 FROM penstock.journal j
        WHERE j.group_id = target_group AND j.partition_id = target AND j.version = timer_version
        FOR UPDATE SKIP LOCKED;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A new statement, hence a new snapshot: look again under the lock.
    SELECT j.* INTO newest FROM penstock.newest_state(target_group, target) j;
    IF newest.version <> timer_version THEN
        RETURN false;
    END IF;

    IF timer_state = 'c' THEN
        PERFORM penstock.expire_claim(newest);
        RETURN true;
    END IF;
    SELECT d.* INTO ready
    FROM penstock.consumer_groups g
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    CROSS JOIN LATERAL penstock.deliverable(target, newest.committed, q.settings || g.config) d
    WHERE g.group_id = target_group;
    IF ready.head_offset <= newest.committed THEN
        -- Idle needs the partition's lock: a push in progress may have seen the old state and woken nobody.
        PERFORM penstock.append_state(
            newest, CASE WHEN timer_state = 'p' THEN 'i' ELSE 'p' END::"char", newest.committed,
            due_at => CASE WHEN timer_state <> 'p' THEN clock_timestamp() + interval '50 milliseconds' END
        );
    ELSIF ready.due_at IS NOT NULL THEN
        -- Pushed to in its quiet period, or the next message's delay is not over.
        PERFORM penstock.append_state(
            newest, 't', newest.committed, newest.attempt, newest.narrow_attempt, newest.narrow_to, ready.due_at,
            newest.first_error, newest.last_error
        );
    ELSE
        PERFORM penstock.append_state(
            newest, 'r', newest.committed, newest.attempt, newest.narrow_attempt, newest.narrow_to, NULL,
            newest.first_error, newest.last_error
        );
    END IF;
    RETURN true;
END
$$;
