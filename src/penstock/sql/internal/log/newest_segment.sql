-- penstock.newest_segment(of_partition)
--
-- Returns the newest segment of a partition, whose end is the head: the next offset. PostgreSQL inlines it, so it
-- costs what the query costs; do not give it options that prevent that (STRICT, SET, SECURITY DEFINER). Views cannot
-- call it: a view's functions run as its reader, who may not see the table.
--
-- Parameters: the id of the partition.
-- Returns: one row, or none where nothing was ever pushed; created_at is the time of the newest message.
-- Calls: nothing. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.newest_segment(of_partition bigint)
RETURNS TABLE (base_offset bigint, head_offset bigint, created_at timestamptz)
LANGUAGE sql STABLE
AS $$
    SELECT s.base_offset, s.base_offset + s.count, s.created_at FROM penstock.segments s
    WHERE s.partition_id = of_partition
    ORDER BY s.base_offset DESC
    LIMIT 1
$$;
