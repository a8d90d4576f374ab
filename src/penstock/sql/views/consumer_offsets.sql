-- penstock.consumer_offsets: the next offset of each group in each partition it has begun. Offsets start at 0. All
-- below it is done; of a shared group, which hands out ranges in any order, it is the first that is not.
-- Granted to: consumer.
CREATE OR REPLACE VIEW penstock.consumer_offsets AS
SELECT
    g.name AS group_id, p.partition_id AS topic_id, q.name AS queue_name, p.name AS partition_name,
    least(j.committed, open.lo) AS next_offset
FROM penstock.consumer_groups g
JOIN penstock.queues q ON q.queue_id = g.queue_id
JOIN penstock.partitions p ON p.queue_id = g.queue_id
CROSS JOIN LATERAL (
    SELECT j.committed FROM penstock.journal j
    WHERE j.group_id = g.group_id AND j.partition_id = p.partition_id
    ORDER BY j.version DESC
    LIMIT 1
) j
CROSS JOIN LATERAL (
    SELECT least(
        (SELECT min(c.lo) FROM penstock.claims c WHERE c.group_id = g.group_id AND c.partition_id = p.partition_id),
        (SELECT min(y.lo) FROM penstock.ready y
         WHERE y.group_id = g.group_id AND y.partition_id = p.partition_id AND y.lo IS NOT NULL)
    ) AS lo
) open;
