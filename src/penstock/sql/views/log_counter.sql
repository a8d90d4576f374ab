-- penstock.log_counter: the offset that the next message of each partition gets. Offsets start at 0.
CREATE OR REPLACE VIEW penstock.log_counter AS
SELECT p.partition_id AS id, q.name AS queue_name, p.name AS partition_name, s.head_offset AS next_offset
FROM penstock.partitions p
JOIN penstock.queues q ON q.queue_id = p.queue_id
CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s;
