-- penstock.drop_below(partition_id, cutoff, max_segments)
--
-- Drops the oldest segments of a partition, whole segments only. The newest one stays as a stub that keeps its
-- place, so the head is never forgotten. Takes no lock that a push waits for.
--
-- Parameters: cutoff - segments that end at or before this offset go; max_segments - how many at most.
-- Returns: how many segments and messages were dropped.
-- Calls: nothing. Tables: segments (delete, update), trimmed (insert).
CREATE OR REPLACE FUNCTION penstock.drop_below(
    partition_id bigint, cutoff bigint, max_segments integer,
    OUT dropped_segments bigint, OUT dropped_messages bigint
)
LANGUAGE plpgsql
AS $$
DECLARE
    newest bigint := (
        SELECT s.base_offset FROM penstock.segments s
        WHERE s.partition_id = drop_below.partition_id
        ORDER BY s.base_offset DESC
        LIMIT 1
    );
BEGIN
    INSERT INTO penstock.trimmed (partition_id)
    SELECT f.partition_id FROM penstock.segments f
    WHERE f.partition_id = drop_below.partition_id AND f.base_offset = 0 AND f.base_offset < newest AND f.count <= cutoff
    ON CONFLICT DO NOTHING;
    -- Materialized: a join might run it again for each row, and each run would find max_segments more.
    WITH old AS MATERIALIZED (
        SELECT o.base_offset FROM penstock.segments o
        WHERE o.partition_id = drop_below.partition_id
          AND o.base_offset < newest AND o.base_offset + o.count <= cutoff
        ORDER BY o.base_offset
        LIMIT max_segments
        FOR UPDATE
    ), gone AS (
        DELETE FROM penstock.segments s
        USING old o
        WHERE s.partition_id = drop_below.partition_id AND s.base_offset = o.base_offset
        RETURNING s.count, s.ends
    ), stub AS (
        UPDATE penstock.segments s
        SET body = NULL, body_compressed = NULL, ends = NULL, keys = NULL, key_ends = NULL,
            headers = NULL, header_ends = NULL, run_counts = NULL, run_times = NULL, bytes = 0
        WHERE s.partition_id = drop_below.partition_id AND s.base_offset = newest
          AND s.base_offset + s.count <= cutoff AND s.ends IS NOT NULL
          -- Oldest first: not while one below it may be left.
          AND (max_segments IS NULL OR (SELECT count(*) FROM old) < max_segments)
        RETURNING s.count
    )
    SELECT count(*), coalesce(sum(d.count), 0) INTO dropped_segments, dropped_messages
    FROM (
        SELECT g.count FROM gone g WHERE g.ends IS NOT NULL
        UNION ALL
        SELECT b.count FROM stub b
    ) d;
END
$$;
