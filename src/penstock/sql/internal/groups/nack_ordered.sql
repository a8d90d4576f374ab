-- penstock.nack_ordered(group_id, partition_id, lease_id, failed_offset, error, reason, wait, traceback)
--
-- Ends a failed claim of an ordered group; see nack_claim.
--
-- Parameters: as in nack_claim; reason is not null.
-- Returns: 'retry' or 'dead letter'; null when the lease is not live.
-- Calls: live_claim, fail_claim. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.nack_ordered(
    group_id      integer,
    partition_id  bigint,
    lease_id      uuid,
    failed_offset bigint,
    error         text,
    reason        text,
    wait          float8,
    traceback     text
)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    claim penstock.journal;
BEGIN
    claim := penstock.live_claim(group_id, partition_id, lease_id);
    IF claim.version IS NULL THEN
        RETURN NULL;
    END IF;
    IF failed_offset NOT BETWEEN claim.committed AND claim.claimed_to - 1 THEN
        RAISE EXCEPTION 'offset % is not in the claim, which has % to %',
            failed_offset, claim.committed, claim.claimed_to - 1
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN CASE
        WHEN penstock.fail_claim(claim, failed_offset, error, reason, wait, traceback)
            THEN 'dead letter'
        ELSE 'retry'
    END;
END
$$;
