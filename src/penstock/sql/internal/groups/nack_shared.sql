-- penstock.nack_shared(group_id, partition_id, lease_id, failed_offset, error, reason, wait, traceback)
--
-- Ends a failed claim of a shared group; see nack_claim.
--
-- Parameters: as in nack_claim; reason is not null.
-- Returns: 'retry' or 'dead letter'; null when the lease is not live.
-- Calls: lock_leases, fail_range, offer_range, free_slots. Tables: claims (read, delete).
CREATE OR REPLACE FUNCTION penstock.nack_shared(
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
    held    penstock.claims;
    claimed record;
    outcome text;
BEGIN
    -- Locked before it is looked at: what was acknowledged of the claim cannot fail any more.
    PERFORM penstock.lock_leases(ARRAY[group_id], ARRAY[partition_id], ARRAY[lease_id]);
    SELECT
        min(c.lo) AS lo, max(c.hi) AS hi, sum(c.hi - c.lo) AS messages,
        bool_or(failed_offset BETWEEN c.lo AND c.hi - 1) AS holds
    INTO claimed
    FROM penstock.claims c
    WHERE c.group_id = nack_shared.group_id AND c.partition_id = nack_shared.partition_id
      AND c.lease_id = nack_shared.lease_id AND c.due_at > clock_timestamp();
    IF NOT claimed.holds THEN
        RAISE EXCEPTION 'offset % is not in the claim, which has % to %', failed_offset, claimed.lo, claimed.hi - 1
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF claimed.messages = 1 THEN
        failed_offset := claimed.lo;
    END IF;
    FOR held IN
        DELETE FROM penstock.claims c
        WHERE c.group_id = nack_shared.group_id AND c.partition_id = nack_shared.partition_id
          AND c.lease_id = nack_shared.lease_id AND c.due_at > clock_timestamp()
        RETURNING c.*
    LOOP
        outcome := coalesce(outcome, 'retry');
        IF failed_offset IS NULL OR failed_offset BETWEEN held.lo AND held.hi - 1 THEN
            IF penstock.fail_range(held, failed_offset, error, reason, wait, traceback) THEN
                outcome := 'dead letter';
            END IF;
        ELSIF held.lo > failed_offset THEN
            PERFORM penstock.offer_range(held, held.lo, held.hi, (held.attempt - 1)::smallint, NULL, NULL);
        END IF;
    END LOOP;
    IF outcome IS NOT NULL THEN
        PERFORM penstock.free_slots(lease_id);
    END IF;
    RETURN outcome;
END
$$;
