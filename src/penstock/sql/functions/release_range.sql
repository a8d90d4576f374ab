-- penstock.release_range(group_id, partition_id, lease_id)
--
-- Gives a claim of a shared group back: what is not done is delivered again at once, and this delivery does not count
-- as an attempt. An operator may use it on any lease.
--
-- Parameters: the claim.
-- Returns: whether there was such a claim.
-- Calls: require_read_committed, use_lock_timeout, lock_leases, offer_range. Tables: claims (delete).
CREATE OR REPLACE FUNCTION penstock.release_range(group_id integer, partition_id bigint, lease_id uuid)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    held     penstock.claims;
    released boolean := false;
BEGIN
    PERFORM penstock.require_read_committed('release');
    PERFORM penstock.use_lock_timeout();
    PERFORM penstock.lock_leases(ARRAY[group_id], ARRAY[partition_id], ARRAY[lease_id]);
    FOR held IN
        DELETE FROM penstock.claims c
        WHERE c.group_id = release_range.group_id AND c.partition_id = release_range.partition_id
          AND c.lease_id = release_range.lease_id
        RETURNING c.*
    LOOP
        PERFORM penstock.offer_range(
            held, held.lo, held.hi, (held.attempt - 1)::smallint, held.first_error, held.last_error
        );
        released := true;
    END LOOP;
    RETURN released;
END
$$;
