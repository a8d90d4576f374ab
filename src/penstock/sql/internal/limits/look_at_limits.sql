-- penstock.look_at_limits(target_group, max_rows, since)
--
-- Looks at the keys of a group whose time has come, and wakes those who wait for them as far as the limits allow. A key that
-- somebody is just popping is left to a later sweep. A look that was decided after now, by a clock that has gone back
-- since, is made now.
--
-- Parameters: target_group; max_rows - the most keys to look at; since - as in sweep.
-- Returns: how many keys were looked at, and how many partitions and ranges were woken.
-- Calls: look_at_key. Tables: limited_keys (lock).
CREATE OR REPLACE FUNCTION penstock.look_at_limits(
    target_group integer, max_rows integer, since timestamptz, OUT visited integer, OUT woken integer
)
LANGUAGE plpgsql
AS $$
DECLARE
    now_here timestamptz := clock_timestamp();
    limited  penstock.limited_keys;
BEGIN
    visited := 0;
    woken := 0;
    FOR limited IN
        SELECT k.* FROM penstock.limited_keys k
        WHERE k.group_id = target_group AND k.look_at > since AND k.look_at <= now_here
        ORDER BY k.look_at
        LIMIT max_rows
        FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        visited := visited + 1;
        woken := woken + penstock.look_at_key(limited);
    END LOOP;
    FOR limited IN
        SELECT k.* FROM penstock.limited_keys k
        WHERE k.group_id = target_group AND k.look_at IS NOT NULL AND k.looked_at > now_here + interval '2 seconds'
        LIMIT max_rows
        FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        visited := visited + 1;
        woken := woken + penstock.look_at_key(limited);
    END LOOP;
END
$$;
