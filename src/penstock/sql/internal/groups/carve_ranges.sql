-- penstock.carve_ranges(entry, version, skipped, acked_at, carved_from, frontier, range_size, more)
--
-- Moves the frontier of a shared group on. What the caller does not take itself goes to the ready list in ranges of one
-- claim each, so that other pops need not wait for the caller's commit. The partition joins the end of the list where there
-- is more, and is parked where that is all.
--
-- Parameters: entry - the entry of the frontier, which the caller has just deleted; version, skipped, acked_at - of the
-- newest journal row, with what was skipped since; carved_from - where what the caller takes ends; frontier - where the last range
-- ends; range_size - messages of a range; more - whether there are messages behind the frontier.
-- Returns: nothing.
-- Calls: trim_journal. Tables: ready, journal (insert).
CREATE OR REPLACE FUNCTION penstock.carve_ranges(
    entry penstock.ready, version bigint, skipped bigint, acked_at timestamptz, carved_from bigint, frontier bigint,
    range_size integer, more boolean
)
RETURNS void
LANGUAGE plpgsql
AS $$
#variable_conflict use_variable
DECLARE
    next_seq bigint;
BEGIN
    IF carved_from < frontier THEN
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id, lo, hi)
        SELECT
            entry.group_id, entry.priority, nextval('penstock.ready_seq'), entry.partition_id,
            c, least(c + range_size, frontier)
        FROM generate_series(carved_from, frontier - 1, range_size) c;
    END IF;
    IF more THEN
        next_seq := nextval('penstock.ready_seq');
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
        VALUES (entry.group_id, entry.priority, next_seq, entry.partition_id);
    END IF;
    INSERT INTO penstock.journal (
        group_id, partition_id, version, state, committed, claimed_to, skipped, ready_seq, due_at, acked_at
    ) VALUES (
        entry.group_id, entry.partition_id, version + 1, CASE WHEN more THEN 'r' ELSE 'p' END::"char",
        frontier, frontier, skipped, next_seq,
        CASE WHEN NOT more THEN clock_timestamp() + interval '50 milliseconds' END, acked_at
    );
    PERFORM penstock.trim_journal(entry.group_id, entry.partition_id, version);
END
$$;
