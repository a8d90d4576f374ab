-- penstock.messages: every message as a row, for people with psql. Restrict it by queue_name and partition_name.
-- Granted to: consumer.
CREATE OR REPLACE VIEW penstock.messages AS
SELECT
    m.id, q.name AS queue_name, p.partition_id, p.name AS partition_name,
    m.message_offset, m.message_key AS key, m.payload, m.message_headers AS headers, m.message_time AS created_at
FROM penstock.queues q
JOIN penstock.partitions p ON p.queue_id = q.queue_id
JOIN penstock.segments s ON s.partition_id = p.partition_id AND s.ends IS NOT NULL
CROSS JOIN LATERAL penstock.unpack(
    s.partition_id, s.base_offset, s.count, s.created_at, 0, s.run_counts, s.run_times,
    0, coalesce(s.body, s.body_compressed), s.ends, 0, s.keys, s.key_ends, 0, s.headers, s.header_ends
) m;
