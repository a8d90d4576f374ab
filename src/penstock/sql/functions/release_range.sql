-- penstock.release_range(group_id, partition_id, lease_id)
--
-- Gives a claim of a shared group back: what is not done is delivered again at once, and this delivery does not count
-- as an attempt. A lease that has ended is the sweep's, which counts the attempt: else a worker that is always too late would
-- get the same messages for ever. An admin may use it on any lease; all others know only their own.
--
-- Parameters: the claim.
-- Returns: whether there was such a claim, and it was still held.
-- Calls: is_admin, require_read_committed, use_lock_timeout, lock_leases, offer_range. Tables: claims (delete).
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
    IF release_range.lease_id IS NULL AND NOT penstock.is_admin() THEN
        RAISE EXCEPTION 'permission denied: only an admin takes a claim away from whoever holds it'
            USING ERRCODE = 'insufficient_privilege', HINT = 'Give the claim''s lease_id.';
    END IF;
    PERFORM penstock.require_read_committed('release');
    PERFORM penstock.use_lock_timeout();
    PERFORM penstock.lock_leases(ARRAY[group_id], ARRAY[partition_id], ARRAY[lease_id]);
    FOR held IN
        DELETE FROM penstock.claims c
        WHERE c.group_id = release_range.group_id AND c.partition_id = release_range.partition_id
          AND c.lease_id = release_range.lease_id AND c.due_at > clock_timestamp()
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
