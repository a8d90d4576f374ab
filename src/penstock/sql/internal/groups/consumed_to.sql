-- penstock.consumed_to(target)
--
-- Returns the offset below which every group has read a partition.
--
-- Parameters: target - the partition.
-- Returns: the offset; the largest bigint if no group reads it.
-- Calls: offset_at. Tables: partitions, consumer_groups, journal, claims, ready (read).
CREATE OR REPLACE FUNCTION penstock.consumed_to(target bigint)
RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(min(CASE
        WHEN j.committed IS NOT NULL THEN j.committed
        -- Not enrolled yet: nothing is read of the messages that `lag` counts.
        WHEN g.subscription = 'all' THEN 0
        ELSE penstock.offset_at(
            p.partition_id, CASE WHEN g.subscription = 'new' THEN g.created_at ELSE g.from_time END
        )
    END), 9223372036854775807)
    FROM penstock.partitions p
    JOIN penstock.consumer_groups g ON g.queue_id = p.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
    LEFT JOIN LATERAL (
        SELECT least(
            j.committed,
            -- Of a shared group the journal knows what was handed out; what of it is not done lies here.
            (SELECT min(c.lo) FROM penstock.claims c
             WHERE c.group_id = g.group_id AND c.partition_id = p.partition_id),
            (SELECT min(y.lo) FROM penstock.ready y
             WHERE y.group_id = g.group_id AND y.partition_id = p.partition_id AND y.lo IS NOT NULL)
        ) AS committed
        FROM penstock.journal j
        WHERE j.group_id = g.group_id AND j.partition_id = p.partition_id
        ORDER BY j.version DESC
        LIMIT 1
    ) j ON true
    WHERE p.partition_id = target
$$;
