-- penstock.ack_ranges(group_ids, partition_ids, lease_ids, los, his)
--
-- Acknowledges messages of shared claims: the whole claim, a part of it, or one message. What is left of the claim stays
-- under its lease. A lease that has expired or is not the claim's own changes nothing.
--
-- Parameters: parallel arrays, one entry per acknowledged range; los and his - from and up to which offset.
-- Returns: for each, in the order given, whether it was acknowledged.
-- Calls: require_read_committed, use_lock_timeout, lock_leases. Tables: claims (delete, insert).
CREATE OR REPLACE FUNCTION penstock.ack_ranges(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], los bigint[], his bigint[]
)
RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    wanted record;
    held   penstock.claims;
    done   bigint;
    acked  boolean[] := '{}';
BEGIN
    PERFORM penstock.require_read_committed('ack');
    PERFORM penstock.use_lock_timeout();
    PERFORM penstock.lock_leases(group_ids, partition_ids, lease_ids);
    FOR wanted IN
        SELECT u.* FROM unnest(group_ids, partition_ids, lease_ids, los, his) WITH ORDINALITY
            u (group_id, partition_id, lease_id, lo, hi, position)
        ORDER BY u.position
    LOOP
        done := 0;
        FOR held IN
            DELETE FROM penstock.claims c
            WHERE c.group_id = wanted.group_id AND c.partition_id = wanted.partition_id
              AND c.lease_id = wanted.lease_id AND c.due_at > clock_timestamp()
              AND c.lo < wanted.hi AND c.hi > wanted.lo
            RETURNING c.*
        LOOP
            done := done + least(held.hi, wanted.hi) - greatest(held.lo, wanted.lo);
            INSERT INTO penstock.claims (
                group_id, partition_id, lo, hi, attempt, lease_id, due_at, consumer, claimed_at, first_error, last_error
            )
            SELECT held.group_id, held.partition_id, rest.lo, rest.hi, held.attempt, held.lease_id, held.due_at,
                   held.consumer, held.claimed_at, held.first_error, held.last_error
            FROM (VALUES (held.lo, wanted.lo), (wanted.hi, held.hi)) rest (lo, hi)
            WHERE rest.lo < rest.hi;
        END LOOP;
        -- What is done already is acknowledged once more, as long as something of the claim is held.
        acked := acked || (done > 0 OR coalesce((
            SELECT bool_and(wanted.lo = wanted.hi OR c.lo >= wanted.hi OR c.hi <= wanted.lo) FROM penstock.claims c
            WHERE c.group_id = wanted.group_id AND c.partition_id = wanted.partition_id
              AND c.lease_id = wanted.lease_id AND c.due_at > clock_timestamp()
        ), false));
    END LOOP;
    RETURN acked;
END
$$;
