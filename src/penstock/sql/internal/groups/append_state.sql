-- penstock.append_state(before, next_state, committed, attempt, narrow_attempt, narrow_to, due_at, first_error,
--                       last_error)
--
-- Appends the next journal row of a (group, partition) that nobody holds any more, and the ready list entry where the
-- new state is ready. The caller is the one who may (see the table of owners in docs/design.md).
--
-- Functions that append many rows, or one for every pop or ack, insert them themselves: ack_and_pop, end_claim, end_claims,
-- carve_ranges, claim_partition, ack_claims, renew_ordered, settle_ordered, wake_partitions, push_segment,
-- advance_reader.
--
-- Parameters: before - the newest row; the others - what the new row says.
-- Returns: nothing.
-- Calls: free_slots. Tables: journal, ready (insert), partitions (read).
CREATE OR REPLACE FUNCTION penstock.append_state(
    before         penstock.journal,
    next_state     "char",
    committed      bigint,
    attempt        smallint    DEFAULT 0,
    narrow_attempt smallint    DEFAULT 0,
    narrow_to      bigint      DEFAULT NULL,
    due_at         timestamptz DEFAULT NULL,
    first_error    text        DEFAULT NULL,
    last_error     text        DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    entry bigint := CASE WHEN next_state = 'r' THEN nextval('penstock.ready_seq') END;
BEGIN
    INSERT INTO penstock.journal (
        group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
        ready_seq, due_at, acked_at, first_error, last_error
    ) VALUES (
        before.group_id, before.partition_id, before.version + 1, next_state,
        append_state.committed, append_state.committed, before.skipped,
        append_state.attempt, append_state.narrow_attempt, append_state.narrow_to,
        entry, append_state.due_at, before.acked_at, append_state.first_error, append_state.last_error
    );
    IF before.state = 'c' THEN
        PERFORM penstock.free_slots(before.lease_id);
    END IF;
    IF entry IS NOT NULL THEN
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
        SELECT before.group_id, p.priority, entry, p.partition_id
        FROM penstock.partitions p
        WHERE p.partition_id = before.partition_id;
    END IF;
END
$$;
