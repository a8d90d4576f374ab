-- penstock.release_claim(group_id, partition_id, lease_id, up_to)
--
-- Gives a claim back: what is not done is delivered again at once, and this delivery does not count as an attempt. With
-- no lease id it is an operator who takes the claim away from whoever holds it, live or not.
--
-- Parameters: lease_id - null to force, for admins; up_to - all below this offset is done, null for nothing.
-- Returns: whether there was such a claim.
-- Calls: is_admin, require_read_committed, use_lock_timeout, lock_newest, append_state. Tables: journal (lock).
CREATE OR REPLACE FUNCTION penstock.release_claim(
    group_id integer, partition_id bigint, lease_id uuid DEFAULT NULL, up_to bigint DEFAULT NULL
)
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
    claim   penstock.journal;
    done_to bigint;
BEGIN
    IF release_claim.lease_id IS NULL AND NOT penstock.is_admin() THEN
        RAISE EXCEPTION 'permission denied: only an admin takes a claim away from whoever holds it'
            USING ERRCODE = 'insufficient_privilege', HINT = 'Give the claim''s lease_id.';
    END IF;
    PERFORM penstock.require_read_committed('release');
    PERFORM penstock.use_lock_timeout();
    PERFORM penstock.lock_newest(ARRAY[release_claim.group_id], ARRAY[release_claim.partition_id]);
    SELECT j.* INTO claim FROM penstock.journal j
    WHERE j.group_id = release_claim.group_id AND j.partition_id = release_claim.partition_id
    ORDER BY j.version DESC
    LIMIT 1;
    IF claim.state IS DISTINCT FROM 'c'
       OR release_claim.lease_id IS NOT NULL
       AND (claim.lease_id <> release_claim.lease_id OR claim.due_at <= clock_timestamp())
    THEN
        RETURN false;
    END IF;
    done_to := least(greatest(up_to, claim.committed), claim.claimed_to);
    IF done_to = claim.committed THEN
        PERFORM penstock.append_state(
            claim, 'r', claim.committed, (claim.attempt - 1)::smallint, claim.narrow_attempt, claim.narrow_to,
            NULL, claim.first_error, claim.last_error
        );
    ELSIF claim.narrow_to > done_to THEN
        PERFORM penstock.append_state(
            claim, 'r', done_to, claim.narrow_attempt, claim.narrow_attempt, claim.narrow_to
        );
    ELSE
        PERFORM penstock.append_state(claim, 'r', done_to);
    END IF;
    RETURN true;
END
$$;
