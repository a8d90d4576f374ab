-- penstock.partition_consumers: how far each group is in each partition, and who holds it. Computed from the journal,
-- and for shared groups from the ranges that are open: list_claims says who holds those.
-- Granted to: consumer.
CREATE OR REPLACE VIEW penstock.partition_consumers AS
SELECT
    p.partition_id,
    q.name AS queue_name,
    p.name AS partition_name,
    g.name AS consumer_group,
    CASE WHEN at.committed > 0 THEN penstock.message_id(p.partition_id, at.committed - 1, last.created_at) END
        AS last_consumed_id,
    last.created_at AS last_consumed_created_at,
    j.acked_at AS last_consumed_at,
    CASE WHEN j.state = 'c' THEN coalesce(j.claimed_at, j.at) END AS lease_acquired_at,
    CASE WHEN j.state = 'c' THEN j.due_at END AS lease_expires_at,
    CASE WHEN j.state = 'c' THEN j.consumer END AS worker_id,
    CASE WHEN j.state = 'c' THEN j.claimed_to - j.committed ELSE 0 END AS batch_size,
    j.committed - j.skipped - dropped.messages - open.messages AS acked_count,
    greatest(j.attempt - (j.state = 'c')::integer, 0) AS batch_retry_count,
    penstock.state_name(j.state) AS state,
    at.committed,
    j.claimed_to,
    j.skipped + dropped.messages AS skipped
FROM penstock.consumer_groups g
JOIN penstock.queues q ON q.queue_id = g.queue_id
JOIN penstock.partitions p ON p.queue_id = g.queue_id
CROSS JOIN LATERAL (
    SELECT j.* FROM penstock.journal j
    WHERE j.group_id = g.group_id AND j.partition_id = p.partition_id
    ORDER BY j.version DESC
    LIMIT 1
) j
CROSS JOIN LATERAL (
    SELECT min(w.lo) AS lo, coalesce(sum(w.hi - w.lo), 0)::bigint AS messages
    FROM (
        SELECT c.lo, c.hi FROM penstock.claims c WHERE c.group_id = g.group_id AND c.partition_id = p.partition_id
        UNION ALL
        SELECT y.lo, y.hi FROM penstock.ready y
        WHERE y.group_id = g.group_id AND y.partition_id = p.partition_id AND y.lo IS NOT NULL
    ) w
) open
CROSS JOIN LATERAL (
    SELECT coalesce(sum(k.hi - k.lo), 0)::bigint AS messages
    FROM penstock.skips k
    WHERE k.group_id = g.group_id AND k.partition_id = p.partition_id
) dropped
CROSS JOIN LATERAL (SELECT least(j.committed, open.lo) AS committed) at
LEFT JOIN LATERAL (
    SELECT penstock.time_in_runs(s.created_at, s.run_counts, s.run_times, (at.committed - 1 - s.base_offset)::integer)
        AS created_at
    FROM penstock.segments s
    WHERE s.partition_id = p.partition_id AND s.base_offset < at.committed
    ORDER BY s.base_offset DESC
    LIMIT 1
) last ON true;
