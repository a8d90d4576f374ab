-- penstock.nack_range(group_id, partition_id, lease_id, failed_offset, error, reason, wait, traceback)
--
-- Says that a claim of a shared group failed: nack_claim for shared groups.
--
-- Parameters: as in nack_claim.
-- Returns: 'retry' or 'dead letter'; null when the lease was not live.
-- Calls: require_read_committed, use_lock_timeout, lock_leases, fail_range, offer_range. Tables: claims (delete).
CREATE OR REPLACE FUNCTION penstock.nack_range(
    group_id      integer,
    partition_id  bigint,
    lease_id      uuid,
    failed_offset bigint DEFAULT NULL,
    error         text   DEFAULT NULL,
    reason        text   DEFAULT NULL,
    wait          float8 DEFAULT NULL,
    traceback     text   DEFAULT NULL
)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    held    penstock.claims;
    claimed record;
    outcome text;
BEGIN
    PERFORM penstock.require_read_committed('nack');
    PERFORM penstock.use_lock_timeout();
    IF wait NOT BETWEEN 0 AND 3155760000 THEN
        RAISE EXCEPTION 'wait is % but must be from 0 to 3155760000 seconds', wait
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Locked before it is looked at: what was acknowledged of the claim cannot fail any more.
    PERFORM penstock.lock_leases(ARRAY[group_id], ARRAY[partition_id], ARRAY[lease_id]);
    SELECT
        min(c.lo) AS lo, max(c.hi) AS hi, sum(c.hi - c.lo) AS messages,
        bool_or(failed_offset BETWEEN c.lo AND c.hi - 1) AS holds
    INTO claimed
    FROM penstock.claims c
    WHERE c.group_id = nack_range.group_id AND c.partition_id = nack_range.partition_id
      AND c.lease_id = nack_range.lease_id AND c.due_at > clock_timestamp();
    IF NOT claimed.holds THEN
        RAISE EXCEPTION 'offset % is not in the claim, which has % to %', failed_offset, claimed.lo, claimed.hi - 1
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF claimed.messages = 1 THEN
        failed_offset := claimed.lo;
    END IF;
    FOR held IN
        DELETE FROM penstock.claims c
        WHERE c.group_id = nack_range.group_id AND c.partition_id = nack_range.partition_id
          AND c.lease_id = nack_range.lease_id AND c.due_at > clock_timestamp()
        RETURNING c.*
    LOOP
        outcome := coalesce(outcome, 'retry');
        IF failed_offset IS NULL OR failed_offset BETWEEN held.lo AND held.hi - 1 THEN
            IF penstock.fail_range(held, failed_offset, error, coalesce(reason, error, 'nack'), wait, traceback) THEN
                outcome := 'dead letter';
            END IF;
        ELSIF held.lo > failed_offset THEN
            PERFORM penstock.offer_range(held, held.lo, held.hi, (held.attempt - 1)::smallint, NULL, NULL);
        END IF;
    END LOOP;
    RETURN outcome;
END
$$;
