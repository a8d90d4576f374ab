-- penstock.end_limit_waits(target_group)
--
-- Lets the sweep look at once at all keys that somebody waits for, because a limit has changed. The slots of a key are
-- counted by the new limit, those of claims that were made under another `concurrency_by` by the key that they had.
--
-- Parameters: target_group.
-- Returns: nothing.
-- Calls: nothing. Tables: limited_keys (update).
CREATE OR REPLACE FUNCTION penstock.end_limit_waits(target_group integer)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE penstock.limited_keys k
    SET look_at = clock_timestamp()
    WHERE k.group_id = target_group AND k.look_at IS NOT NULL
$$;
