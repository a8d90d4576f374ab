-- penstock.cold_queue_entries: every message that waits for an action and is not handed out, neither to a worker nor to
-- the window in Valkey. Computed from positions, so it costs no row per message; to count, use list_queued_work, which
-- reads no messages. delta_file_flow_id is the id of the message, delta_file_id that of the one that entered the flow.
-- Granted to: consumer.
CREATE OR REPLACE VIEW penstock.cold_queue_entries AS
SELECT
    m.id AS delta_file_flow_id,
    coalesce(m.message_headers ->> 'penstock-did', m.id::text) AS delta_file_id,
    a.flow_name, a.flow_type, a.action_name, a.action_class,
    m.message_time AS queued_at
FROM penstock.actions a
JOIN penstock.consumer_groups g ON g.name = a.flow_name || '.' || a.action_name
JOIN penstock.partitions p ON p.queue_id = g.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
CROSS JOIN LATERAL (
    SELECT j.* FROM penstock.journal j
    WHERE j.group_id = g.group_id AND j.partition_id = p.partition_id
    ORDER BY j.version DESC
    LIMIT 1
) j
CROSS JOIN LATERAL (
    SELECT j.claimed_to AS lo, 9223372036854775807 AS hi
    UNION ALL
    SELECT y.lo, y.hi FROM penstock.ready y
    WHERE y.group_id = g.group_id AND y.partition_id = p.partition_id AND y.lo IS NOT NULL
) r
JOIN penstock.segments s ON s.partition_id = p.partition_id AND s.ends IS NOT NULL
    AND s.base_offset < r.hi AND s.base_offset + s.count > r.lo
CROSS JOIN LATERAL penstock.unpack(
    s.partition_id, s.base_offset, s.count, s.created_at, 0, s.run_counts, s.run_times,
    0, coalesce(s.body, s.body_compressed), s.ends, 0, s.keys, s.key_ends, 0, s.headers, s.header_ends
) m
WHERE m.message_offset >= r.lo AND m.message_offset < r.hi;
