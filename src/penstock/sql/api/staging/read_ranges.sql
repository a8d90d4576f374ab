-- penstock.read_ranges(partition_ids, starts, stops)
--
-- Reads ranges of any number of partitions, still packed, in one call: the form that Spark's tasks use.
--
-- Parameters: parallel arrays, one entry per range.
-- Returns: the rows of segment_slices, each with the position of its range (from 1), in the order of the ranges.
-- Calls: segment_slices. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.read_ranges(partition_ids bigint[], starts bigint[], stops bigint[])
RETURNS TABLE (
    range_position bigint,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
    SELECT r.position, s.*
    FROM unnest(partition_ids, starts, stops) WITH ORDINALITY r (partition_id, start, stop, position)
    CROSS JOIN LATERAL penstock.segment_slices(r.partition_id, r.start, r.stop) s
    -- Staged segments have negative partition ids and are not visible here.
    WHERE r.partition_id > 0
$$;
