-- penstock.archive_ranges(queue_name, before, partition_names)
--
-- Returns the ranges of a queue that can be archived now: in each partition from the end of its archive, or from the
-- floor, up to the end of the last segment that is older than `before`. Only whole segments are archived, so that
-- they can be dropped afterwards.
--
-- Parameters: before - null for all messages; partition_names - null for all partitions. Private lanes are left out.
-- Returns: a row per partition that has something to archive, by id.
-- Calls: find_queue, find_partition, archived_to, partition_span, offset_at. Tables: partitions, segments (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.archive_ranges(
    queue_name text, before timestamptz DEFAULT NULL, partition_names text[] DEFAULT NULL
)
RETURNS TABLE (partition_id bigint, partition_name text, start_offset bigint, stop_offset bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    queue  integer := penstock.find_queue(queue_name);
    wanted bigint[] := ARRAY(SELECT penstock.find_partition(queue_name, n) FROM unnest(partition_names) n);
BEGIN
    RETURN QUERY
    SELECT p.partition_id, p.name, r.start_offset, r.stop_offset
    FROM penstock.partitions p
    CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
    CROSS JOIN LATERAL (
        SELECT
            greatest(penstock.archived_to(p.partition_id), s.floor_offset) AS start_offset,
            CASE WHEN before IS NULL THEN s.head_offset ELSE penstock.offset_at(p.partition_id, before) END AS reached
    ) w
    CROSS JOIN LATERAL (
        SELECT w.start_offset, CASE WHEN w.reached >= s.head_offset THEN s.head_offset ELSE (
            SELECT g.base_offset FROM penstock.segments g
            WHERE g.partition_id = p.partition_id AND g.base_offset <= w.reached
            ORDER BY g.base_offset DESC
            LIMIT 1
        ) END AS stop_offset
    ) r
    WHERE p.queue_id = queue AND p.lane_of IS NULL
      AND (partition_names IS NULL OR p.partition_id = ANY (wanted)) AND r.start_offset < r.stop_offset
    ORDER BY p.partition_id;
END
$$;
