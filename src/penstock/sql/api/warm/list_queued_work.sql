-- penstock.list_queued_work()
--
-- Lists what waits for each group, apart for what is in Valkey (warm) and what is in PostgreSQL alone (cold): how many
-- messages, since when the oldest waits, and its did, the id of the message that entered the flow. Of a group that is that
-- of an action, also flow, action and action class. Counts are those of the last sample and of the dispatcher's last
-- heartbeat; the oldest is one lookup. It reads a few rows per group, whatever waits.
--
-- Returns: a row per group and tier that has messages; warm ones first, by queue and name.
-- Calls: segment_slices, unpack, message_id, newest_state. Tables: group_samples, consumer_groups, queues, actions,
-- warm_leases, ready (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_queued_work()
RETURNS TABLE (
    tier text, queue text, consumer_group text, action_class text, flow text, flow_type text, action text, count bigint,
    oldest_at timestamptz, oldest_did text
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        t.tier, q.name, g.name, a.action_class, a.flow_name, coalesce(a.flow_type, 'UNKNOWN'), a.action_name, t.count,
        m.at, coalesce(m.did, m.id::text)
    FROM penstock.consumer_groups g
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    LEFT JOIN penstock.group_samples s ON s.group_id = g.group_id
    LEFT JOIN penstock.warm_leases w ON w.group_id = g.group_id AND w.deadline > clock_timestamp()
    LEFT JOIN penstock.actions a ON a.flow_name || '.' || a.action_name = g.name
    -- What was first to become ready and is not claimed.
    LEFT JOIN LATERAL (
        SELECT y.partition_id, coalesce(y.lo, j.claimed_to) AS first
        FROM (
            SELECT y.* FROM penstock.ready y
            WHERE y.group_id = g.group_id AND y.priority = ANY (q.priorities)
            ORDER BY y.seq
            LIMIT 1
        ) y
        LEFT JOIN LATERAL penstock.newest_state(y.group_id, y.partition_id) j ON true
    ) c ON true
    CROSS JOIN LATERAL (
        VALUES
            ('warm', w.items, s.oldest_partition, s.oldest_offset),
            ('cold', s.depth, coalesce(c.partition_id, CASE WHEN w.items > 0 IS NOT TRUE THEN s.oldest_partition END),
             CASE WHEN c.partition_id IS NOT NULL THEN c.first WHEN w.items > 0 IS NOT TRUE THEN s.oldest_offset END)
    ) t (tier, count, partition_id, first)
    LEFT JOIN LATERAL (
        SELECT
            u.message_time AS at, penstock.message_id(t.partition_id, t.first, u.message_time) AS id,
            u.message_headers ->> 'penstock-did' AS did
        FROM penstock.segment_slices(t.partition_id, t.first, t.first + 1) l
        CROSS JOIN LATERAL penstock.unpack(
            t.partition_id, l.base_offset, l.count, l.created_at, l.run_skip, l.run_counts, l.run_times,
            l.body_start, l.body, l.ends, l.key_start, l.keys, l.key_ends, l.header_start, l.headers, l.header_ends
        ) u
        LIMIT 1
    ) m ON t.first IS NOT NULL
    WHERE t.count > 0
    ORDER BY t.tier DESC, q.name, g.name
$$;
