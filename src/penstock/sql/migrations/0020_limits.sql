-- 0020_limits: since when a queue or a group allows as many attempts as it does now, so that `verify` can tell what was
-- delivered under another limit. Of those that are there already nobody knows: it counts from now on.
ALTER TABLE penstock.queues ADD COLUMN limited_at timestamptz NOT NULL DEFAULT clock_timestamp();
ALTER TABLE penstock.consumer_groups ADD COLUMN limited_at timestamptz NOT NULL DEFAULT clock_timestamp();

-- Partitions that lost their first segment to retention before there was `trimmed`.
INSERT INTO penstock.trimmed (partition_id)
SELECT s.partition_id FROM penstock.segments s
WHERE s.partition_id > 0
GROUP BY s.partition_id
HAVING min(s.base_offset) > 0
ON CONFLICT DO NOTHING;
