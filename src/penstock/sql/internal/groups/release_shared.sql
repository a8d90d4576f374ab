-- penstock.release_shared(group_id, partition_id, lease_id)
--
-- Ends a claim of a shared group without counting an attempt; see release_claim. With no lease id it ends every claim
-- of the partition.
--
-- Parameters: as in release_claim.
-- Returns: whether there was such a claim.
-- Calls: lock_leases, offer_range, free_slots. Tables: claims (read, delete).
CREATE OR REPLACE FUNCTION penstock.release_shared(group_id integer, partition_id bigint, lease_id uuid)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    leases   uuid[] := ARRAY[lease_id];
    held     penstock.claims;
    released boolean := false;
BEGIN
    IF lease_id IS NULL THEN
        leases := ARRAY(
            SELECT DISTINCT c.lease_id FROM penstock.claims c
            WHERE c.group_id = release_shared.group_id AND c.partition_id = release_shared.partition_id
              AND c.lease_id IS NOT NULL
        );
    END IF;
    PERFORM penstock.lock_leases(
        array_fill(group_id, ARRAY[cardinality(leases)]), array_fill(partition_id, ARRAY[cardinality(leases)]), leases
    );
    FOR held IN
        DELETE FROM penstock.claims c
        WHERE c.group_id = release_shared.group_id AND c.partition_id = release_shared.partition_id
          AND c.lease_id = ANY (leases)
          -- A lease that has ended is the sweep's, which counts the attempt: else a worker that is always too late
          -- would get the same messages for ever.
          AND (release_shared.lease_id IS NULL OR c.due_at > clock_timestamp())
        RETURNING c.*
    LOOP
        PERFORM penstock.offer_range(
            held, held.lo, held.hi, (held.attempt - 1)::smallint, held.first_error, held.last_error
        );
        released := true;
        PERFORM penstock.free_slots(held.lease_id);
    END LOOP;
    RETURN released;
END
$$;
