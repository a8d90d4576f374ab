-- penstock.offset_at(partition_id, moment)
--
-- Finds a time in a partition. Times never decrease within one, so this is a binary search over offsets with one
-- index probe per step; it needs no index on time.
--
-- Parameters: partition_id, moment.
-- Returns: the first offset whose message is not older than moment; the head when all are older.
-- Calls: partition_span. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.offset_at(partition_id bigint, moment timestamptz)
RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    low     bigint;
    high    bigint;
    segment record;
BEGIN
    SELECT s.floor_offset, s.head_offset INTO low, high FROM penstock.partition_span(offset_at.partition_id) s;
    -- All segments that end at or before `low` are too old; the answer lies in the segment that begins at `high`, if
    -- any.
    WHILE low < high LOOP
        SELECT s.base_offset, s.count, s.created_at INTO segment
        FROM penstock.segments s
        WHERE s.partition_id = offset_at.partition_id AND s.base_offset <= low + (high - low) / 2
        ORDER BY s.base_offset DESC
        LIMIT 1;
        IF segment.created_at < moment THEN
            low := segment.base_offset + segment.count;
        ELSE
            high := segment.base_offset;
        END IF;
    END LOOP;
    -- Once, at the end: a merged segment may have thousands of runs.
    RETURN high + coalesce((
        SELECT sum(r.messages)
        FROM penstock.segments s
        CROSS JOIN LATERAL unnest(s.run_counts, s.run_times) r (messages, created_at)
        WHERE s.partition_id = offset_at.partition_id AND s.base_offset = high AND r.created_at < moment
    ), 0);
END
$$;
