-- penstock.live_claim(target_group, target, lease)
--
-- Locks and returns a claim that is live: the lease id is its own and the deadline has not passed.
--
-- Parameters: the ids of the group, the partition and the lease.
-- Returns: the newest journal row; nulls if the lease has expired or is not the claim's own.
-- Calls: lock_newest, newest_state. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.live_claim(target_group integer, target bigint, lease uuid)
RETURNS penstock.journal
LANGUAGE plpgsql
AS $$
DECLARE
    found penstock.journal;
BEGIN
    PERFORM penstock.lock_newest(ARRAY[target_group], ARRAY[target]);
    -- A new statement, hence a new snapshot: the holder of the lock before us may have ended the claim.
    SELECT j.* INTO found FROM penstock.newest_state(target_group, target) j;
    IF found.state = 'c' AND found.lease_id = lease AND found.due_at > clock_timestamp() THEN
        RETURN found;
    END IF;
    RETURN NULL;
END
$$;
