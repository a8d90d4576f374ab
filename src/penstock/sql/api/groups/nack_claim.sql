-- penstock.nack_claim(group_id, partition_id, lease_id, failed_offset, error, reason, wait, traceback)
--
-- Reports that a claim failed and ends it, for a group of either mode; see fail_claim and fail_range for the
-- consequences. If the lease has expired or is not the claim's own, nothing changes.
--
-- Parameters: failed_offset - the message that failed, if known: those before it count as done; error - the error;
-- reason - by which dead letters are grouped, null for the error; wait - seconds until the next attempt, null for the
-- backoff; traceback - stored with the dead letter, if there is one.
-- Returns: 'retry' or 'dead letter'; null when the lease is not live.
-- Calls: require_read_committed, use_lock_timeout, nack_ordered, nack_shared. Tables: consumer_groups (read).
-- Granted to: consumer.
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
    shared boolean := EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = nack_claim.group_id AND g.mode = 'shared'
    );
BEGIN
    IF wait NOT BETWEEN 0 AND 3155760000 THEN
        RAISE EXCEPTION 'wait is % but must be from 0 to 3155760000 seconds', wait
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_read_committed('nack');
    PERFORM penstock.use_lock_timeout();
    reason := coalesce(reason, error, 'nack');
    IF shared THEN
        RETURN penstock.nack_shared(group_id, partition_id, lease_id, failed_offset, error, reason, wait, traceback);
    END IF;
    RETURN penstock.nack_ordered(group_id, partition_id, lease_id, failed_offset, error, reason, wait, traceback);
END
$$;
