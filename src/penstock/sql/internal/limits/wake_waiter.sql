-- penstock.wake_waiter(waiter)
--
-- Puts a partition or range that waits for a key back in the ready list. It waits for nobody.
--
-- Parameters: waiter - its row, which the caller has locked.
-- Returns: whether it was woken; false if it has gone on already, or somebody is just changing it.
-- Calls: newest_state, append_state, trim_journal, offer_range. Tables: waiters (delete), journal (lock), claims (delete).
CREATE OR REPLACE FUNCTION penstock.wake_waiter(waiter penstock.waiters)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    newest penstock.journal;
    held   penstock.claims;
    woken  boolean := false;
    locked boolean := false;
BEGIN
    IF waiter.lo IS NULL THEN
        PERFORM 1 FROM penstock.journal j
        WHERE j.group_id = waiter.group_id AND j.partition_id = waiter.partition_id AND j.version = waiter.version
        FOR UPDATE SKIP LOCKED;
        locked := FOUND;
        -- A new statement, hence a new snapshot: look again under the lock.
        SELECT j.* INTO newest FROM penstock.newest_state(waiter.group_id, waiter.partition_id) j;
        IF newest.version = waiter.version AND newest.state = 't' THEN
            IF NOT locked THEN
                RETURN false;
            END IF;
            PERFORM penstock.append_state(
                newest, 'r', newest.committed, newest.attempt, newest.narrow_attempt, newest.narrow_to, NULL,
                newest.first_error, newest.last_error
            );
            PERFORM penstock.trim_journal(newest.group_id, newest.partition_id, newest.version);
            woken := true;
        END IF;
    ELSE
        DELETE FROM penstock.claims c
        WHERE c.ctid = ANY (ARRAY(
            SELECT c.ctid FROM penstock.claims c
            WHERE c.group_id = waiter.group_id AND c.partition_id = waiter.partition_id AND c.lo = waiter.lo
              AND c.lease_id IS NULL AND c.claimed_at = waiter.since
            FOR UPDATE SKIP LOCKED
        ))
        RETURNING c.* INTO held;
        woken := FOUND;
        IF woken THEN
            PERFORM penstock.offer_range(held, held.lo, held.hi, held.attempt, held.first_error, held.last_error);
        ELSIF EXISTS (
            SELECT 1 FROM penstock.claims c
            WHERE c.group_id = waiter.group_id AND c.partition_id = waiter.partition_id AND c.lo = waiter.lo
              AND c.lease_id IS NULL AND c.claimed_at = waiter.since
        ) THEN
            RETURN false; -- somebody is just changing it
        END IF;
    END IF;
    DELETE FROM penstock.waiters w
    WHERE w.group_id = waiter.group_id AND w.kind = waiter.kind AND w.key = waiter.key AND w.seq = waiter.seq;
    RETURN woken;
END
$$;
