-- penstock.release_warm_claims(target_group, held_epoch, partition_ids, lease_ids)
--
-- Gives claims of a dispatcher back without counting an attempt, if it still holds the lease of the window: one that was
-- stopped and wakes up must not give back what its successor hands out.
--
-- Parameters: held_epoch - that of the caller; partition_ids, lease_ids - parallel arrays, an entry per claim.
-- Returns: how many were given back; null where the caller has lost the lease.
-- Calls: release_claim. Tables: warm_leases (lock).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.release_warm_claims(
    target_group integer, held_epoch bigint, partition_ids bigint[], lease_ids uuid[]
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
BEGIN
    -- Until this has committed nobody takes over.
    PERFORM 1 FROM penstock.warm_leases w WHERE w.group_id = target_group AND w.epoch = held_epoch FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- In the order in which every function locks claims.
    RETURN (
        SELECT count(*) FILTER (WHERE r.released) FROM (
            SELECT penstock.release_claim(target_group, u.partition_id, u.lease_id) AS released
            FROM (
                SELECT * FROM unnest(partition_ids, lease_ids) u (partition_id, lease_id)
                WHERE u.lease_id IS NOT NULL
                ORDER BY u.partition_id
            ) u
            OFFSET 0
        ) r
    );
END
$$;
