-- penstock.pending_partitions(target_group, max_look)
--
-- Returns the partitions that a group has work in, and how much, for those who look and do not count: it visits at most
-- `max_look` entries of the ready list, of the timers and of the claims, so its cost is bounded whatever waits. Positions
-- are subtracted. The lag of a shared group has the ranges that are set aside, too.
--
-- Parameters: target_group; max_look - the largest number of entries of each kind to visit.
-- Returns: a row per partition: state and positions of its newest journal row, lag, span, and what its timer says.
-- Calls: newest_state, partition_span. Tables: ready, journal, claims (read).
CREATE OR REPLACE FUNCTION penstock.pending_partitions(target_group integer, max_look integer)
RETURNS TABLE (
    partition_id bigint, state "char", committed bigint, floor_offset bigint, head_offset bigint, newest_at timestamptz,
    lag bigint, attempt smallint, due_at timestamptz, last_error text
)
LANGUAGE sql STABLE
AS $$
    WITH touched AS (
        SELECT y.partition_id FROM (
            SELECT y.partition_id FROM penstock.ready y
            WHERE y.group_id = target_group
            ORDER BY y.priority, y.seq
            LIMIT max_look
        ) y
        UNION
        SELECT d.partition_id FROM (
            SELECT j.group_id, j.partition_id FROM penstock.journal j
            WHERE j.due_at IS NOT NULL
            ORDER BY j.due_at DESC
            LIMIT max_look
        ) d
        WHERE d.group_id = target_group
        UNION
        SELECT c.partition_id FROM (
            SELECT c.partition_id FROM penstock.claims c
            WHERE c.group_id = target_group
            ORDER BY c.partition_id, c.lo
            LIMIT max_look
        ) c
    )
    SELECT
        t.partition_id, j.state, greatest(j.committed, s.floor_offset), s.floor_offset, s.head_offset, s.newest_at,
        (greatest(s.head_offset - greatest(j.committed, s.floor_offset), 0) + aside.messages)::bigint, j.attempt, j.due_at,
        j.last_error
    FROM touched t
    CROSS JOIN LATERAL penstock.newest_state(target_group, t.partition_id) j
    CROSS JOIN LATERAL penstock.partition_span(t.partition_id) s
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(greatest(r.hi - greatest(r.lo, s.floor_offset), 0)), 0) AS messages
        FROM (
            SELECT c.lo, c.hi FROM penstock.claims c
            WHERE c.group_id = target_group AND c.partition_id = t.partition_id
            UNION ALL
            SELECT y.lo, y.hi FROM penstock.ready y
            WHERE y.group_id = target_group AND y.partition_id = t.partition_id AND y.lo IS NOT NULL
        ) r
    ) aside
$$;
