-- penstock.drop_below(partition_id, cutoff, max_segments, low)
--
-- Drops the oldest segments of a partition, whole segments only. The newest one stays as a stub, so that the head is
-- kept. Takes no lock that a push waits for.
--
-- Parameters: cutoff - segments that end at or before this offset are dropped; max_segments - the largest number; low
-- - where to begin: segments that the transaction has already dropped would be visited again one by one.
-- Returns: the number of segments and messages dropped, and the end of the last one.
-- Calls: newest_segment. Tables: segments (delete, update), trimmed (insert).
CREATE OR REPLACE FUNCTION penstock.drop_below(
    partition_id bigint, cutoff bigint, max_segments integer, low bigint DEFAULT 0,
    OUT dropped_segments bigint, OUT dropped_messages bigint, OUT dropped_to bigint
)
LANGUAGE plpgsql
-- Statistics older than a backlog make it look cheap to go through all of it for each segment.
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    newest bigint := (SELECT s.base_offset FROM penstock.newest_segment(drop_below.partition_id) s);
    locked integer;
    stub   integer;
BEGIN
    INSERT INTO penstock.trimmed (partition_id)
    SELECT f.partition_id FROM penstock.segments f
    WHERE f.partition_id = drop_below.partition_id AND f.base_offset = 0 AND f.base_offset < newest AND f.count <= cutoff
    ON CONFLICT DO NOTHING;
    -- Those to drop are the first ones: once their end is known, they are a range of the key.
    SELECT count(*), coalesce(max(o.next_offset), low) INTO locked, dropped_to
    FROM (
        SELECT o.base_offset + o.count AS next_offset FROM penstock.segments o
        WHERE o.partition_id = drop_below.partition_id AND o.base_offset >= low
          AND o.base_offset < newest AND o.base_offset + o.count <= cutoff
        ORDER BY o.base_offset
        LIMIT max_segments
        FOR UPDATE
    ) o;
    WITH gone AS (
        DELETE FROM penstock.segments s
        WHERE s.partition_id = drop_below.partition_id AND s.base_offset >= low AND s.base_offset < dropped_to
        RETURNING s.count, s.ends
    )
    SELECT count(*), coalesce(sum(g.count), 0) INTO dropped_segments, dropped_messages
    FROM gone g
    WHERE g.ends IS NOT NULL;
    -- Oldest first: not while one below it may be left.
    IF max_segments IS NULL OR locked < max_segments THEN
        UPDATE penstock.segments s
        SET body = NULL, body_compressed = NULL, ends = NULL, keys = NULL, key_ends = NULL,
            headers = NULL, header_ends = NULL, run_counts = NULL, run_times = NULL, bytes = 0
        WHERE s.partition_id = drop_below.partition_id AND s.base_offset = newest
          AND s.base_offset + s.count <= cutoff AND s.ends IS NOT NULL
        RETURNING s.count INTO stub;
        IF FOUND THEN
            dropped_segments := dropped_segments + 1;
            dropped_messages := dropped_messages + stub;
        END IF;
    END IF;
END
$$;
