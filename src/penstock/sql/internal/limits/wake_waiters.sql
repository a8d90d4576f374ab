-- penstock.wake_waiters(target_group, wanted_kind, wanted, most)
--
-- Wakes the first of those who wait for a key.
--
-- Parameters: the group, the kind of limit and the key; most - how many to wake.
-- Returns: how many were woken.
-- Calls: wake_waiter. Tables: waiters (lock).
CREATE OR REPLACE FUNCTION penstock.wake_waiters(target_group integer, wanted_kind "char", wanted text, most integer)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    waiter penstock.waiters;
    after  bigint := -1;
    woken  integer := 0;
BEGIN
    WHILE woken < most LOOP
        SELECT w.* INTO waiter FROM penstock.waiters w
        WHERE w.group_id = target_group AND w.kind = wanted_kind AND w.key = wanted AND w.seq > after
        ORDER BY w.seq
        LIMIT 1
        FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        IF penstock.wake_waiter(waiter) THEN
            woken := woken + 1;
        END IF;
        after := waiter.seq;
    END LOOP;
    RETURN woken;
END
$$;
