-- penstock.ack_shared(group_ids, partition_ids, lease_ids, starts, stops)
--
-- Acknowledges messages of claims of shared groups; see ack_claims. What is left of a claim stays under its lease.
--
-- Parameters: as in ack_claims.
-- Returns: for each entry, in the order given, whether it was acknowledged.
-- Calls: lock_leases, free_slots. Tables: claims (read, delete, insert), consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.ack_shared(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], starts bigint[], stops bigint[]
)
RETURNS boolean[]
LANGUAGE plpgsql
AS $$
DECLARE
    wanted record;
    held   penstock.claims;
    done   bigint;
    ended  uuid[];
    places bigint[];
    acked  boolean[] := '{}';
BEGIN
    -- Nearly always all of every claim is done, and each is one row.
    IF coalesce(cardinality(array_remove(starts || stops, NULL)), 0) = 0 THEN
        WITH ended AS (
            DELETE FROM penstock.claims c
            WHERE c.ctid = ANY (ARRAY(
                SELECT c.ctid
                FROM (
                    SELECT DISTINCT u.group_id, u.partition_id, u.lease_id
                    FROM unnest(group_ids, partition_ids, lease_ids) u (group_id, partition_id, lease_id)
                    ORDER BY 1, 2, 3 -- as lock_leases does
                ) u
                CROSS JOIN LATERAL (
                    SELECT c.ctid FROM penstock.claims c
                    WHERE c.group_id = u.group_id AND c.partition_id = u.partition_id AND c.lease_id = u.lease_id
                      AND c.whole AND c.due_at > clock_timestamp()
                    FOR UPDATE
                ) c
            ))
            RETURNING c.lease_id, c.partition_id
        )
        SELECT array_agg(e.lease_id), array_agg(e.partition_id) INTO ended, places FROM ended e;
    END IF;
    IF cardinality(ended) = cardinality(lease_ids) THEN
        acked := array_fill(true, ARRAY[cardinality(lease_ids)]);
    ELSE
        PERFORM penstock.lock_leases(group_ids, partition_ids, lease_ids);
    END IF;
    FOR wanted IN
        SELECT
            u.group_id, u.partition_id, u.lease_id,
            coalesce(u.start, 0) AS lo, coalesce(u.stop, 9223372036854775807) AS hi
        FROM unnest(group_ids, partition_ids, lease_ids, starts, stops) WITH ORDINALITY
            u (group_id, partition_id, lease_id, start, stop, position)
        WHERE cardinality(acked) = 0
        ORDER BY u.position
    LOOP
        IF places[array_position(ended, wanted.lease_id)] = wanted.partition_id THEN
            acked := acked || true;
            CONTINUE;
        END IF;
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
                group_id, partition_id, lo, hi, attempt, lease_id, due_at, consumer, claimed_at, first_error, last_error,
                whole
            )
            SELECT held.group_id, held.partition_id, rest.lo, rest.hi, held.attempt, held.lease_id, held.due_at,
                   held.consumer, held.claimed_at, held.first_error, held.last_error, false
            FROM (VALUES (held.lo, wanted.lo), (wanted.hi, held.hi)) rest (lo, hi)
            WHERE rest.lo < rest.hi;
        END LOOP;
        IF done > 0 THEN
            acked := acked || true;
            CONTINUE;
        END IF;
        -- What is done already is acknowledged once more, as long as something of the claim is held.
        acked := acked || coalesce((
            SELECT bool_and(wanted.lo = wanted.hi OR c.lo >= wanted.hi OR c.hi <= wanted.lo) FROM penstock.claims c
            WHERE c.group_id = wanted.group_id AND c.partition_id = wanted.partition_id
              AND c.lease_id = wanted.lease_id AND c.due_at > clock_timestamp()
        ), false);
    END LOOP;
    PERFORM penstock.free_slots(u.lease_id, coalesce((
        SELECT range_agg(int8range(c.lo, c.hi)) FROM penstock.claims c
        WHERE c.group_id = u.group_id AND c.partition_id = u.partition_id AND c.lease_id = u.lease_id
    ), '{}'))
    FROM (
        SELECT DISTINCT u.group_id, u.partition_id, u.lease_id
        FROM unnest(group_ids, partition_ids, lease_ids) u (group_id, partition_id, lease_id)
    ) u
    JOIN penstock.consumer_groups g ON g.group_id = u.group_id
    WHERE g.gated;
    RETURN acked;
END
$$;
