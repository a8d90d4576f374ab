-- penstock.end_claim(reader, target, lease, stop)
--
-- Acknowledges all of one claim of an ordered group, the commonest acknowledgement: the partition joins the end of the
-- ready list, or is parked where nothing is left to read. Anything else is left to ack_claims, which it agrees with.
-- Each statement here costs as much as the insert of a row, hence so few of them.
--
-- Now and then it trims the journal behind the claim. That leaves the sweep few rows of a busy partition, for which it
-- would have to look one by one; the last sixteen stay, as history.
--
-- Parameters: the ids of group, partition and lease; stop - as in ack_claims.
-- Returns: whether the claim was acknowledged; if not, nothing has changed.
-- Calls: nothing. Tables: journal (lock, insert, delete), ready (insert), partitions, segments (read).
CREATE OR REPLACE FUNCTION penstock.end_claim(reader integer, target bigint, lease uuid, stop bigint)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    held  record;
    entry bigint;
BEGIN
    SELECT
        j.version, j.state, j.claimed_to, j.skipped, j.narrow_to, j.due_at, j.lease_id,
        (SELECT p.priority FROM penstock.partitions p WHERE p.partition_id = target) AS priority,
        (
            SELECT s.base_offset + s.count FROM penstock.segments s
            WHERE s.partition_id = target
            ORDER BY s.base_offset DESC
            LIMIT 1
        ) AS head_offset
    INTO held
    FROM penstock.journal j
    WHERE j.group_id = reader AND j.partition_id = target
    ORDER BY j.version DESC
    LIMIT 1
    FOR UPDATE;
    -- Not in the query: the clock is read after the wait for the lock.
    IF (
        held.state = 'c' AND held.lease_id = lease AND held.due_at > clock_timestamp() AND held.priority IS NOT NULL
        AND coalesce(held.narrow_to, 0) <= held.claimed_to AND coalesce(stop, held.claimed_to) = held.claimed_to
    ) IS NOT TRUE THEN
        RETURN false;
    END IF;
    -- With nothing left the ready list entry would only lead to an empty look: park it at once.
    entry := CASE WHEN held.head_offset > held.claimed_to THEN nextval('penstock.ready_seq') END;
    INSERT INTO penstock.journal (
        group_id, partition_id, version, state, committed, claimed_to, skipped, ready_seq, due_at, acked_at
    )
    SELECT
        reader, target, held.version + 1, CASE WHEN entry IS NOT NULL THEN 'r' ELSE 'p' END::"char",
        held.claimed_to, held.claimed_to, held.skipped, entry,
        CASE WHEN entry IS NULL THEN clock_timestamp() + interval '50 milliseconds' END, clock_timestamp()
    -- A new statement, hence a new snapshot: whoever held the lock before us may have ended the claim.
    WHERE NOT EXISTS (
        SELECT 1 FROM penstock.journal j
        WHERE j.group_id = reader AND j.partition_id = target AND j.version > held.version
    );
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF entry IS NOT NULL THEN
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id) VALUES (reader, held.priority, entry, target);
    END IF;
    IF held.version % 32 < 2 THEN
        DELETE FROM penstock.journal j
        WHERE j.ctid = ANY (ARRAY(
            SELECT o.ctid FROM penstock.journal o
            WHERE o.group_id = reader AND o.partition_id = target
              AND o.version BETWEEN held.version - 80 AND held.version - 16
            FOR UPDATE SKIP LOCKED
        ));
    END IF;
    RETURN true;
END
$$;
