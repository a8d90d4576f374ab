-- penstock.lock_limited_keys(target_group, wanted_kind, wanted)
--
-- Locks the rows of limited keys, and makes those that are missing. It waits for nobody: a key that somebody else holds is
-- left out.
--
-- Parameters: target_group; wanted_kind - 'r' or 'c'; wanted - the keys.
-- Returns: the keys that are locked, with what their rows say.
-- Calls: nothing. Tables: limited_keys (lock, insert).
CREATE OR REPLACE FUNCTION penstock.lock_limited_keys(target_group integer, wanted_kind "char", wanted text[])
RETURNS TABLE (key text, full_at timestamptz, look_at timestamptz)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    -- An insert waits for another one of the same key, unless both have to get this lock. There are few such locks, because
    -- a transaction may have many keys.
    INSERT INTO penstock.limited_keys (group_id, kind, key)
    SELECT target_group, wanted_kind, w.key
    FROM (SELECT DISTINCT u.key FROM unnest(wanted) u (key)) w
    WHERE NOT EXISTS (
        SELECT 1 FROM penstock.limited_keys k
        WHERE k.group_id = target_group AND k.kind = wanted_kind AND k.key = w.key
    ) AND pg_try_advisory_xact_lock(1885695606, hashtext(target_group || '/' || wanted_kind::text || w.key) & 63)
    ON CONFLICT DO NOTHING;
    RETURN QUERY
    SELECT k.key, k.full_at, k.look_at FROM penstock.limited_keys k
    WHERE k.group_id = target_group AND k.kind = wanted_kind AND k.key = ANY (wanted)
    FOR NO KEY UPDATE SKIP LOCKED;
END
$$;
