-- penstock.partition_lookup: the newest message of every partition that has one. Computed, so it cannot be stale.
CREATE OR REPLACE VIEW penstock.partition_lookup AS
SELECT
    lpad(to_hex(p.partition_id), 32, '0')::uuid AS id,
    q.name AS queue_name,
    p.partition_id,
    penstock.message_id(p.partition_id, s.head_offset - 1, s.newest_at) AS last_message_id,
    s.newest_at AS last_message_created_at,
    s.newest_at AS updated_at,
    s.head_offset - s.floor_offset AS messages_count
FROM penstock.partitions p
JOIN penstock.queues q ON q.queue_id = p.queue_id
CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
WHERE s.head_offset > s.floor_offset;
