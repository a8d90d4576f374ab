-- penstock.joined_slice(partition_id, start_offset, stop_offset)
--
-- Reads a range of offsets that lies in segments of one message each as one slice, made like a merged segment: messages
-- that were pushed one at a time cost their reader about what a batch costs. The other form of segment_slices.
--
-- Parameters: the range, from start_offset up to and without stop_offset; all of it must be there.
-- Returns: one row as of segment_slices. No row where the range lies in other segments as well, or some of its messages
-- have a key, headers or a null value, or were dropped.
-- Calls: nothing. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.joined_slice(partition_id bigint, start_offset bigint, stop_offset bigint)
RETURNS TABLE (
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT
        joined_slice.start_offset, count(*)::integer, max(s.created_at),
        0, array_fill(1, ARRAY[count(*)::integer]), array_agg(s.created_at),
        0, string_agg(s.value, ''),
        -- Each end as little-endian int32: its bytes in reverse, as int4send writes them the other way round.
        string_agg(int4send((s.upto << 24) | ((s.upto & 65280) << 8) | ((s.upto >> 8) & 65280) | (s.upto >> 24)), ''),
        0, NULL::bytea, NULL::bytea, 0, NULL::bytea, NULL::bytea
    FROM (
        SELECT
            s.created_at, s.value,
            (sum(octet_length(s.value)) OVER (ORDER BY s.base_offset ROWS UNBOUNDED PRECEDING))::integer AS upto
        FROM (
            SELECT s.base_offset, s.created_at, coalesce(s.body, s.body_compressed) AS value
            FROM penstock.segments s
            WHERE s.partition_id = joined_slice.partition_id
              AND s.base_offset >= joined_slice.start_offset AND s.base_offset < joined_slice.stop_offset
            ORDER BY s.base_offset
        ) s
    ) s
    WHERE NOT EXISTS (
        SELECT 1 FROM penstock.segments o
        WHERE o.partition_id = joined_slice.partition_id
          AND o.base_offset >= joined_slice.start_offset AND o.base_offset < joined_slice.stop_offset
          AND (o.count = 1 AND octet_length(o.ends) = 4 AND o.keys IS NULL AND o.headers IS NULL) IS NOT TRUE
    )
    HAVING count(*) = joined_slice.stop_offset - joined_slice.start_offset
$$;
