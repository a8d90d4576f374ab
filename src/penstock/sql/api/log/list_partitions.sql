-- penstock.list_partitions(queue_name, partition_name, after_name, max_rows)
--
-- Lists the partitions of a queue, or one of them, a page at a time.
--
-- Parameters: partition_name - null for all; after_name - where the last page ended; max_rows - null for all.
-- Returns: a row per partition, by name: its positions and the time of its newest message.
-- Calls: find_queue, find_partition, partition_span. Tables: partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_partitions(
    queue_name     text,
    partition_name text    DEFAULT NULL,
    after_name     text    DEFAULT NULL,
    max_rows       integer DEFAULT NULL
)
RETURNS TABLE (
    name text, partition_id bigint, priority smallint, created_at timestamptz,
    floor_offset bigint, head_offset bigint, newest_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- A generic plan would visit all partitions to describe one.
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    queue  integer := penstock.find_queue(queue_name);
    wanted bigint := CASE
        WHEN partition_name IS NOT NULL THEN penstock.find_partition(queue_name, partition_name)
    END;
BEGIN
    RETURN QUERY
    SELECT p.name, p.partition_id, p.priority, p.created_at, s.floor_offset, s.head_offset, s.newest_at
    FROM (
        SELECT * FROM penstock.partitions p
        WHERE p.queue_id = queue AND p.lane_of IS NULL
          AND (wanted IS NULL OR p.partition_id = wanted)
          AND (after_name IS NULL OR p.name > after_name)
        ORDER BY p.name
        LIMIT max_rows
    ) p
    CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
    ORDER BY p.name;
END
$$;
