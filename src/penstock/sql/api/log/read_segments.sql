-- penstock.read_segments(queue_name, partition_name, start_offset, stop_offset, start_time, stop_time, max_bytes)
--
-- Reads a range of a partition, a page at a time, still packed: the form that the clients use.
--
-- Parameters: the range by offsets, by times, or both (the narrower applies); null leaves a side open. max_bytes -
-- the approximate size of a page; it has at least one segment.
-- Returns: the rows of segment_slices or joined_slice, each with the partition's id and the offset of the next page
-- (null on the last page). No row: the range is empty.
-- Calls: find_partition, partition_span, offset_at, stop_after_bytes, joined_slice, segment_slices. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.read_segments(
    queue_name     text,
    partition_name text,
    start_offset   bigint      DEFAULT 0,
    stop_offset    bigint      DEFAULT NULL,
    start_time     timestamptz DEFAULT NULL,
    stop_time      timestamptz DEFAULT NULL,
    max_bytes      bigint      DEFAULT 8388608
)
RETURNS TABLE (
    partition_id bigint, next_offset bigint,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    source  bigint := penstock.find_partition(queue_name, partition_name);
    low     bigint;
    high    bigint;
    page_to bigint;
BEGIN
    IF start_offset < 0 OR stop_offset < 0 THEN
        RAISE EXCEPTION 'offset % is negative; offsets start at 0', least(start_offset, stop_offset)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT s.floor_offset, s.head_offset INTO low, high FROM penstock.partition_span(source) s;
    low := greatest(low, start_offset);
    high := least(high, stop_offset);
    IF start_time IS NOT NULL THEN
        low := greatest(low, penstock.offset_at(source, start_time));
    END IF;
    IF stop_time IS NOT NULL THEN
        high := least(high, penstock.offset_at(source, stop_time));
    END IF;
    IF low >= high THEN
        RETURN;
    END IF;
    page_to := penstock.stop_after_bytes(source, low, high, max_bytes);
    IF page_to - low > 1 AND max_bytes <= 67108864 THEN
        RETURN QUERY
        SELECT source, nullif(page_to, high), s.* FROM penstock.joined_slice(source, low, page_to) s;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    RETURN QUERY
    SELECT source, nullif(page_to, high), s.* FROM penstock.segment_slices(source, low, page_to) s;
END
$$;
