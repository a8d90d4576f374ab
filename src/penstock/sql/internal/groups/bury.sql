-- penstock.bury(claim, failing, error, reason, traceback)
--
-- Makes a dead letter: a copy of a message whose attempts are used up. A message that retention has dropped leaves
-- none.
--
-- Parameters: as in fail_claim.
-- Returns: nothing.
-- Calls: segment_slices, unpack. Tables: partitions (read), dead_letters (insert).
CREATE OR REPLACE FUNCTION penstock.bury(
    claim penstock.journal, failing bigint, error text, reason text, traceback text DEFAULT NULL
)
RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO penstock.dead_letters (
        queue_id, group_id, partition_id, message_offset, created_at, payload, key, headers,
        reason, attempts, first_error, last_error, consumer, traceback
    )
    SELECT
        p.queue_id, claim.group_id, claim.partition_id, failing, m.message_time, m.payload, m.message_key, m.message_headers,
        bury.reason, claim.attempt, coalesce(claim.first_error, bury.error), bury.error, claim.consumer,
        bury.traceback
    FROM penstock.partitions p
    CROSS JOIN LATERAL penstock.segment_slices(claim.partition_id, failing, failing + 1) s
    CROSS JOIN LATERAL penstock.unpack(
        claim.partition_id, s.base_offset, s.count, s.created_at, s.run_skip, s.run_counts, s.run_times,
        s.body_start, s.body, s.ends, s.key_start, s.keys, s.key_ends, s.header_start, s.headers, s.header_ends
    ) m
    WHERE p.partition_id = claim.partition_id
$$;
