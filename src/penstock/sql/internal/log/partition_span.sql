-- penstock.partition_span(partition_id)
--
-- Returns the positions of a partition, with one index probe for each: floor (all messages below are dropped) and
-- head (the next offset), and the time of the newest message.
--
-- Parameters: partition_id.
-- Returns: one row; zeros and a null time for a partition that never had a message.
-- Calls: newest_segment. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.partition_span(partition_id bigint)
RETURNS TABLE (floor_offset bigint, head_offset bigint, newest_at timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE
ROWS 1
AS $$
    SELECT coalesce(oldest.floor_offset, 0), coalesce(newest.head_offset, 0), newest.created_at
    FROM (SELECT) one
    LEFT JOIN LATERAL (
        SELECT CASE WHEN s.ends IS NULL THEN s.base_offset + s.count ELSE s.base_offset END AS floor_offset
        FROM penstock.segments s
        WHERE s.partition_id = partition_span.partition_id
        ORDER BY s.base_offset
        LIMIT 1
    ) oldest ON true
    LEFT JOIN LATERAL penstock.newest_segment(partition_span.partition_id) newest ON true
$$;
