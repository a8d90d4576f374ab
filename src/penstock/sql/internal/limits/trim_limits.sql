-- penstock.trim_limits(max_rows)
--
-- Deletes rows of limited keys that say nothing any more: the key may have a whole burst, nobody has a slot of it and nobody
-- waits for it. Also slots of claims that are not held any more.
--
-- Parameters: max_rows - the most to delete.
-- Returns: how many keys were deleted.
-- Calls: policy_clock, drop_dead_slots. Tables: limited_keys (delete), slots, waiters (read).
CREATE OR REPLACE FUNCTION penstock.trim_limits(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    now_here timestamptz := penstock.policy_clock();
    deleted  integer;
BEGIN
    PERFORM penstock.drop_dead_slots(s.group_id, s.key)
    FROM (SELECT DISTINCT s.group_id, s.key FROM penstock.slots s LIMIT max_rows) s;
    -- Under its lock, so that nobody is just taking from it.
    WITH idle AS MATERIALIZED (
        SELECT k.group_id, k.kind, k.key FROM penstock.limited_keys k
        WHERE k.look_at IS NULL AND (k.full_at IS NULL OR k.full_at <= now_here)
        LIMIT max_rows
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM penstock.limited_keys k
    USING idle i
    WHERE k.group_id = i.group_id AND k.kind = i.kind AND k.key = i.key
      AND NOT EXISTS (SELECT 1 FROM penstock.slots s WHERE s.group_id = k.group_id AND s.key = k.key)
      AND NOT EXISTS (
          SELECT 1 FROM penstock.waiters w WHERE w.group_id = k.group_id AND w.kind = k.kind AND w.key = k.key
      );
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
