-- penstock.release_claim(group_id, partition_id, lease_id)
--
-- Gives a claim up, for a group of either mode: messages that are not done are delivered again at once, and this
-- delivery does not count as an attempt. Without a lease id an admin takes the claim away from its holder, live or
-- not; in a shared group, every claim of the partition.
--
-- Parameters: lease_id - null to force, for admins.
-- Returns: whether there was such a claim. An expired lease is none: that delivery counts as an attempt.
-- Calls: is_admin, require_read_committed, use_lock_timeout, release_ordered, release_shared. Tables: consumer_groups
-- (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.release_claim(group_id integer, partition_id bigint, lease_id uuid DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
BEGIN
    IF lease_id IS NULL AND NOT penstock.is_admin() THEN
        RAISE EXCEPTION 'permission denied: to release a claim without its lease_id needs the admin role'
            USING ERRCODE = 'insufficient_privilege', HINT = 'Give the claim''s lease_id.';
    END IF;
    PERFORM penstock.require_read_committed('release');
    PERFORM penstock.use_lock_timeout();
    IF EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = release_claim.group_id AND g.mode = 'shared'
    ) THEN
        RETURN penstock.release_shared(group_id, partition_id, lease_id);
    END IF;
    RETURN penstock.release_ordered(group_id, partition_id, lease_id);
END
$$;
