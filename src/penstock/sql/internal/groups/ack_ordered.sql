-- penstock.ack_ordered(group_ids, partition_ids, lease_ids, up_to)
--
-- Acknowledges claims of ordered groups; see ack_claims. A claim that is acknowledged whole ends, and its partition joins
-- the end of the ready list; one that is acknowledged in part goes on under its lease.
--
-- Parameters: parallel arrays, one entry per claim; up_to - all below this offset is done, null for the whole claim.
-- Returns: for each claim, in the order given, whether it was acknowledged.
-- Calls: lock_newest. Tables: journal (read, insert), partitions, segments (read), ready (insert).
CREATE OR REPLACE FUNCTION penstock.ack_ordered(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], up_to bigint[]
)
RETURNS boolean[]
LANGUAGE plpgsql
AS $$
DECLARE
    acked boolean[];
BEGIN
    PERFORM penstock.lock_newest(group_ids, partition_ids);
    -- A new statement, hence a new snapshot: whoever held the lock before us may have ended the claim.
    WITH ending AS MATERIALIZED (
        SELECT
            u.position, p.priority, s.head_offset, j.*,
            coalesce(u.up_to, j.claimed_to) AS done_to,
            coalesce(u.up_to, j.claimed_to) = j.claimed_to AS whole,
            -- With nothing left the ready list entry would only lead to an empty look: park it at once.
            CASE WHEN coalesce(u.up_to, j.claimed_to) < j.claimed_to THEN 'c'
                 WHEN s.head_offset > j.claimed_to THEN 'r'
                 ELSE 'p' END AS next_state,
            nextval('penstock.ready_seq') AS seq
        FROM unnest(group_ids, partition_ids, lease_ids, ack_ordered.up_to) WITH ORDINALITY
            u (group_id, partition_id, lease_id, up_to, position)
        CROSS JOIN LATERAL (
            SELECT j.* FROM penstock.journal j
            WHERE j.group_id = u.group_id AND j.partition_id = u.partition_id
            ORDER BY j.version DESC
            LIMIT 1
        ) j
        JOIN penstock.partitions p ON p.partition_id = j.partition_id
        CROSS JOIN LATERAL (
            SELECT s.base_offset + s.count AS head_offset FROM penstock.segments s
            WHERE s.partition_id = j.partition_id
            ORDER BY s.base_offset DESC
            LIMIT 1
        ) s
        WHERE j.state = 'c' AND j.lease_id = u.lease_id AND j.due_at > clock_timestamp()
          AND coalesce(u.up_to, j.claimed_to) BETWEEN j.committed AND j.claimed_to
    ), appended AS (
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
            ready_seq, due_at, lease_id, consumer, claimed_at, acked_at, first_error, last_error
        )
        SELECT
            e.group_id, e.partition_id, e.version + 1, e.next_state::"char", e.done_to, e.claimed_to, e.skipped,
            CASE WHEN e.done_to = e.committed THEN e.attempt
                 WHEN NOT e.whole THEN e.attempt
                 WHEN e.narrow_to > e.done_to THEN e.narrow_attempt ELSE 0 END,
            CASE WHEN e.narrow_to > e.done_to THEN e.narrow_attempt ELSE 0 END,
            CASE WHEN e.narrow_to > e.done_to THEN e.narrow_to END,
            CASE WHEN e.next_state = 'r' THEN e.seq END,
            CASE e.next_state WHEN 'c' THEN e.due_at WHEN 'p' THEN clock_timestamp() + interval '50 milliseconds' END,
            CASE WHEN e.next_state = 'c' THEN e.lease_id END,
            CASE WHEN e.next_state = 'c' THEN e.consumer END,
            CASE WHEN e.next_state = 'c' THEN coalesce(e.claimed_at, e.at) END,
            clock_timestamp(),
            CASE WHEN e.done_to = e.committed THEN e.first_error END,
            CASE WHEN e.done_to = e.committed THEN e.last_error END
        FROM ending e
    ), lined AS (
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
        SELECT e.group_id, e.priority, e.seq, e.partition_id FROM ending e WHERE e.next_state = 'r'
    )
    SELECT array_agg(e.position IS NOT NULL ORDER BY n) INTO acked
    FROM generate_series(1, cardinality(lease_ids)) n
    LEFT JOIN ending e ON e.position = n;
    RETURN acked;
END
$$;
