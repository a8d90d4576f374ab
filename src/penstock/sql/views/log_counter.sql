-- penstock.log_counter: the offset that the next message of each partition gets. Offsets start at 0.
-- Granted to: consumer.
CREATE OR REPLACE VIEW penstock.log_counter AS
SELECT p.partition_id AS id, q.name AS queue_name, p.name AS partition_name, coalesce(s.head_offset, 0) AS next_offset
FROM penstock.partitions p
JOIN penstock.queues q ON q.queue_id = p.queue_id
-- Not partition_span: a view's functions run as the reader, who may not see the table.
LEFT JOIN LATERAL (
    SELECT s.base_offset + s.count AS head_offset
    FROM penstock.segments s
    WHERE s.partition_id = p.partition_id
    ORDER BY s.base_offset DESC
    LIMIT 1
) s ON true;
