-- penstock.nack_claim(group_id, partition_id, lease_id, failed_offset, error, reason, wait, traceback)
--
-- Says that a claim failed. What happens then: see fail_claim. A lease that has expired or is not the claim's own
-- changes nothing.
--
-- Parameters: failed_offset - the message that failed, if known: those before it count as done; error - what went wrong;
-- reason - what to group dead letters by, the error when null; wait - seconds until the next attempt, null for the backoff;
-- traceback - kept with the dead letter, if it becomes one.
-- Returns: 'retry' or 'dead letter'; null when the lease was not live.
-- Calls: require_read_committed, use_lock_timeout, live_claim, fail_claim. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.nack_claim(
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
    claim penstock.journal;
BEGIN
    PERFORM penstock.require_read_committed('nack');
    PERFORM penstock.use_lock_timeout();
    claim := penstock.live_claim(group_id, partition_id, lease_id);
    IF claim.version IS NULL THEN
        RETURN NULL;
    END IF;
    IF failed_offset NOT BETWEEN claim.committed AND claim.claimed_to - 1 THEN
        RAISE EXCEPTION 'offset % is not in the claim, which has % to %',
            failed_offset, claim.committed, claim.claimed_to - 1
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF wait NOT BETWEEN 0 AND 3155760000 THEN
        RAISE EXCEPTION 'wait is % but must be from 0 to 3155760000 seconds', wait
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN CASE
        WHEN penstock.fail_claim(claim, failed_offset, error, coalesce(reason, error, 'nack'), wait, traceback)
            THEN 'dead letter'
        ELSE 'retry'
    END;
END
$$;
