-- penstock.await_key(target_group, kind, key, target, version, lo, since)
--
-- Takes note that a partition of an ordered group, or a range of a shared one, waits for a key.
--
-- Parameters: the columns of the row.
-- Returns: nothing.
-- Calls: nothing. Tables: waiters (insert).
CREATE OR REPLACE FUNCTION penstock.await_key(
    target_group integer, kind "char", key text, target bigint, version bigint, lo bigint, since timestamptz
)
RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO penstock.waiters (group_id, kind, key, seq, partition_id, version, lo, since)
    VALUES (
        target_group, await_key.kind, await_key.key, nextval('penstock.ready_seq'), target, await_key.version, await_key.lo,
        await_key.since
    )
$$;
