-- penstock.group_work(target_group, most)
--
-- Returns the partitions of a group that are not idle: in the ready list, claimed, waiting for a timer, not enrolled
-- yet, or with a late wake-up. Idle partitions have no lag, so lag, depth and pending messages follow from these.
--
-- Parameters: target_group; most - visit so many of each kind at most, null for all.
-- Returns: a row per such partition with its newest journal row and its head.
-- Calls: partition_span, offset_at, newest_state. Tables: ready, journal, claims, segments, partitions, late_wakeups,
-- consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.group_work(target_group integer, most integer)
RETURNS TABLE (
    partition_id bigint, state "char", committed bigint, claimed_to bigint, head_offset bigint, since timestamptz
)
LANGUAGE sql STABLE
AS $$
    WITH touched AS (
        (SELECT y.partition_id FROM penstock.ready y WHERE y.group_id = target_group AND y.lo IS NULL LIMIT most)
        UNION
        SELECT j.partition_id
        FROM (SELECT j.group_id, j.partition_id FROM penstock.journal j WHERE j.due_at IS NOT NULL LIMIT most) j
        WHERE j.group_id = target_group
    ), late AS (
        -- Pushed to by somebody who could not see the state of the groups; the sweep has not been here yet.
        SELECT DISTINCT w.partition_id
        FROM penstock.late_wakeups w
        JOIN penstock.partitions p ON p.partition_id = w.partition_id
        JOIN penstock.consumer_groups g ON g.queue_id = p.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
        WHERE g.group_id = target_group
        LIMIT most
    )
    SELECT
        t.partition_id, j.state, greatest(j.committed, s.floor_offset), j.claimed_to, s.head_offset,
        -- A renewal is no new claim.
        coalesce(j.claimed_at, j.at)
    FROM (SELECT t.partition_id FROM touched t UNION SELECT l.partition_id FROM late l) t
    CROSS JOIN LATERAL penstock.newest_state(target_group, t.partition_id) j
    CROSS JOIN LATERAL penstock.partition_span(t.partition_id) s
    WHERE j.state <> 'i' OR s.head_offset > j.committed
    UNION ALL
    -- Ranges of a shared group lie beside the frontier, each a piece of work of its own.
    SELECT
        c.partition_id, CASE WHEN c.lease_id IS NULL THEN 't' ELSE 'c' END::"char", greatest(c.lo, s.floor_offset), c.hi,
        c.hi, c.claimed_at
    FROM (SELECT c.* FROM penstock.claims c WHERE c.group_id = target_group LIMIT most) c
    CROSS JOIN LATERAL penstock.partition_span(c.partition_id) s
    UNION ALL
    SELECT y.partition_id, 'r', greatest(y.lo, s.floor_offset), y.lo, y.hi, (
        SELECT g.created_at FROM penstock.segments g
        WHERE g.partition_id = y.partition_id AND g.base_offset <= y.lo
        ORDER BY g.base_offset DESC
        LIMIT 1
    )
    FROM (SELECT y.* FROM penstock.ready y WHERE y.group_id = target_group AND y.lo IS NOT NULL LIMIT most) y
    CROSS JOIN LATERAL penstock.partition_span(y.partition_id) s
    UNION ALL
    SELECT
        p.partition_id, 'n', greatest(s.floor_offset, x.wanted), greatest(s.floor_offset, x.wanted), s.head_offset,
        g.created_at
    FROM penstock.consumer_groups g
    CROSS JOIN LATERAL (
        (
            SELECT p.partition_id FROM penstock.partitions p
            WHERE p.queue_id = g.queue_id AND p.lane_of IS NULL
              AND p.partition_id > CASE WHEN g.enrol_again THEN 0 ELSE g.enrolled_to END
            LIMIT most
        )
        UNION
        SELECT p.partition_id
        FROM late l
        JOIN penstock.partitions p ON p.partition_id = l.partition_id
        WHERE p.queue_id = g.queue_id AND p.lane_of IS NULL
    ) p
    CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
    CROSS JOIN LATERAL (
        SELECT CASE g.subscription
            WHEN 'all' THEN 0
            WHEN 'new' THEN penstock.offset_at(p.partition_id, g.created_at)
            ELSE penstock.offset_at(p.partition_id, g.from_time)
        END AS wanted
    ) x
    WHERE g.group_id = target_group AND s.head_offset > s.floor_offset
      AND NOT EXISTS (
          SELECT 1 FROM penstock.journal j WHERE j.group_id = g.group_id AND j.partition_id = p.partition_id
      )
$$;
