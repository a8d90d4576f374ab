-- penstock.partition_lookup: the newest message of every partition that has one. Computed, so it cannot be stale.
-- Granted to: consumer.
CREATE OR REPLACE VIEW penstock.partition_lookup AS
SELECT
    lpad(to_hex(p.partition_id), 32, '0')::uuid AS id,
    q.name AS queue_name,
    p.partition_id,
    penstock.message_id(p.partition_id, newest.head_offset - 1, newest.created_at) AS last_message_id,
    newest.created_at AS last_message_created_at,
    newest.created_at AS updated_at,
    newest.head_offset - oldest.floor_offset AS messages_count
FROM penstock.partitions p
JOIN penstock.queues q ON q.queue_id = p.queue_id
-- Not partition_span: a view's functions run as the reader, who may not see the table.
CROSS JOIN LATERAL (
    SELECT CASE WHEN s.ends IS NULL THEN s.base_offset + s.count ELSE s.base_offset END AS floor_offset
    FROM penstock.segments s
    WHERE s.partition_id = p.partition_id
    ORDER BY s.base_offset
    LIMIT 1
) oldest
CROSS JOIN LATERAL (
    SELECT s.base_offset + s.count AS head_offset, s.created_at
    FROM penstock.segments s
    WHERE s.partition_id = p.partition_id
    ORDER BY s.base_offset DESC
    LIMIT 1
) newest
WHERE newest.head_offset > oldest.floor_offset;
