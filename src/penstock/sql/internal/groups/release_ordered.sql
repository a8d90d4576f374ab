-- penstock.release_ordered(group_id, partition_id, lease_id)
--
-- Ends a claim of an ordered group without counting an attempt; see release_claim.
--
-- Parameters: as in release_claim.
-- Returns: whether there was such a claim.
-- Calls: lock_newest, append_state, newest_state. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.release_ordered(group_id integer, partition_id bigint, lease_id uuid)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    claim penstock.journal;
BEGIN
    PERFORM penstock.lock_newest(ARRAY[release_ordered.group_id], ARRAY[release_ordered.partition_id]);
    SELECT j.* INTO claim FROM penstock.newest_state(release_ordered.group_id, release_ordered.partition_id) j;
    IF claim.state IS DISTINCT FROM 'c'
       OR release_ordered.lease_id IS NOT NULL
       AND (claim.lease_id <> release_ordered.lease_id OR claim.due_at <= clock_timestamp())
    THEN
        RETURN false;
    END IF;
    PERFORM penstock.append_state(
        claim, 'r', claim.committed, (claim.attempt - 1)::smallint, claim.narrow_attempt, claim.narrow_to,
        NULL, claim.first_error, claim.last_error
    );
    RETURN true;
END
$$;
