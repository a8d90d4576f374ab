-- penstock.fail_warm_claims(target_group, partition_ids, lease_ids, starts, stops, aheads, error, reason, wait, traceback)
--
-- Takes note that workers failed with parts of claims that they were given from the window of a group: their leases ended,
-- or they said so without saying at which message. The delivery counts as an attempt for what the worker had, and for
-- nothing else of the claim.
--
-- Parameters: parallel arrays, an entry per part: the offsets from `start` up to and without `stop` of a claim; ahead -
-- whether the worker had not begun with it, as in ack_and_pop; error - null where the lease ended; reason, wait,
-- traceback - as in nack_claim. In an ordered group all below `start` is done.
-- Returns: for each entry 'retry' or 'dead letter', null where the claim is not live or does not have it.
-- Calls: lock_newest, lock_leases, newest_state, expire_claim, fail_claim, expire_range, fail_range. Tables:
-- consumer_groups (read), claims (delete, insert).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.fail_warm_claims(
    target_group integer, partition_ids bigint[], lease_ids uuid[], starts bigint[], stops bigint[], aheads boolean[],
    error text DEFAULT NULL, reason text DEFAULT NULL, wait float8 DEFAULT NULL, traceback text DEFAULT NULL
)
RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    parts  integer := coalesce(cardinality(partition_ids), 0);
    groups integer[] := array_fill(target_group, ARRAY[parts]);
    shared boolean := (SELECT g.mode = 'shared' FROM penstock.consumer_groups g WHERE g.group_id = target_group);
    before penstock.journal;
    held   penstock.claims;
    dead   boolean;
    answer text[] := array_fill(NULL::text, ARRAY[parts]);
BEGIN
    IF (parts = ALL (ARRAY[
        cardinality(lease_ids), cardinality(starts), cardinality(stops), cardinality(aheads)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'give arrays of one length' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF shared IS NULL THEN
        RETURN answer;
    END IF;
    IF shared THEN
        PERFORM penstock.lock_leases(groups, partition_ids, lease_ids);
    ELSE
        PERFORM penstock.lock_newest(groups, partition_ids);
    END IF;
    -- New statements, hence new snapshots: whoever held the locks before us may have ended a claim.
    FOR i IN 1 .. parts LOOP
        IF shared THEN
            FOR held IN
                DELETE FROM penstock.claims c
                WHERE c.group_id = target_group AND c.partition_id = partition_ids[i] AND c.lease_id = lease_ids[i]
                  AND c.due_at > clock_timestamp() AND c.lo < stops[i] AND c.hi > starts[i]
                RETURNING c.*
            LOOP
                INSERT INTO penstock.claims (
                    group_id, partition_id, lo, hi, attempt, lease_id, due_at, consumer, claimed_at, first_error,
                    last_error, whole
                )
                SELECT held.group_id, held.partition_id, rest.lo, rest.hi, held.attempt, held.lease_id, held.due_at,
                       held.consumer, held.claimed_at, held.first_error, held.last_error, false
                FROM (VALUES (held.lo, starts[i]), (stops[i], held.hi)) rest (lo, hi)
                WHERE rest.lo < rest.hi;
                held.lo := greatest(held.lo, starts[i]);
                held.hi := least(held.hi, stops[i]);
                held.ahead := aheads[i];
                held.alone := stops[i] - starts[i] = 1;
                dead := false;
                IF error IS NULL AND reason IS NULL THEN
                    PERFORM penstock.expire_range(held);
                ELSE
                    dead := penstock.fail_range(held, NULL, error, coalesce(reason, error, 'nack'), wait, traceback);
                END IF;
                answer[i] := CASE WHEN dead THEN 'dead letter' ELSE coalesce(answer[i], 'retry') END;
            END LOOP;
        ELSE
            SELECT j.* INTO before FROM penstock.newest_state(target_group, partition_ids[i]) j;
            IF before.state = 'c' AND before.lease_id = lease_ids[i] AND before.due_at > clock_timestamp()
               AND before.committed < stops[i] AND stops[i] <= before.claimed_to
            THEN
                IF starts[i] > before.committed THEN
                    before.committed := starts[i];
                    before.acked_at := clock_timestamp();
                    before.first_error := NULL;
                    before.last_error := NULL;
                END IF;
                before.claimed_to := stops[i];
                before.ahead := aheads[i];
                dead := false;
                IF error IS NULL AND reason IS NULL THEN
                    PERFORM penstock.expire_claim(before);
                ELSE
                    dead := penstock.fail_claim(before, NULL, error, coalesce(reason, error, 'nack'), wait, traceback);
                END IF;
                answer[i] := CASE WHEN dead THEN 'dead letter' ELSE 'retry' END;
            END IF;
        END IF;
    END LOOP;
    RETURN answer;
END
$$;
