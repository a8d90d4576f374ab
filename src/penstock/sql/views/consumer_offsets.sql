-- penstock.consumer_offsets: the next offset of each group in each partition it has begun. Offsets start at 0.
CREATE OR REPLACE VIEW penstock.consumer_offsets AS
SELECT
    g.name AS group_id, p.partition_id AS topic_id, q.name AS queue_name, p.name AS partition_name,
    j.committed AS next_offset
FROM penstock.consumer_groups g
JOIN penstock.queues q ON q.queue_id = g.queue_id
JOIN penstock.partitions p ON p.queue_id = g.queue_id
CROSS JOIN LATERAL (
    SELECT j.committed FROM penstock.journal j
    WHERE j.group_id = g.group_id AND j.partition_id = p.partition_id
    ORDER BY j.version DESC
    LIMIT 1
) j;
