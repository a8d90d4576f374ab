-- penstock.append_segments(targets, counts, bodies, ends, keys, key_ends, headers, header_ends)
--
-- Assigns offsets to segments and writes them. The caller has checked them (require_segments), holds the locks of all
-- the partitions, and calls this in a statement of its own, so that it sees the newest segment. Offsets are computed
-- from the counts alone: the payload is not sorted.
--
-- Parameters: targets - a partition id per segment; the others as in push_segments.
-- Returns: one row per segment, in the order given. Times never decrease within a partition.
-- Calls: refuse_full, offset_limit, packed_bytes, compresses, wake_partitions, newest_segment. Tables: queues,
-- partitions (read), segments, late_wakeups (insert).
CREATE OR REPLACE FUNCTION penstock.append_segments(
    targets     bigint[],
    counts      integer[],
    bodies      bytea[],
    ends        bytea[],
    keys        bytea[],
    key_ends    bytea[],
    headers     bytea[],
    header_ends bytea[]
)
RETURNS TABLE (partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz)
LANGUAGE plpgsql
AS $$
DECLARE
    now_here   timestamptz := clock_timestamp();
    offsets    bigint[];
    times      timestamptz[];
    compressed boolean[];
BEGIN
    SELECT
        array_agg(coalesce(newest.head_offset, 0) + s.before ORDER BY s.position),
        array_agg(greatest(now_here, newest.created_at) ORDER BY s.position),
        array_agg(penstock.compresses(p.settings ->> 'compression') ORDER BY s.position)
    INTO offsets, times, compressed
    FROM (
        SELECT u.target, u.position, sum(u.count) OVER (PARTITION BY u.target ORDER BY u.position) - u.count AS before
        FROM unnest(targets, counts) WITH ORDINALITY u (target, count, position)
    ) s
    -- LIMIT: a plain join, planned for small tables, begins with the queues and all of their partitions.
    CROSS JOIN LATERAL (
        SELECT (SELECT q.settings FROM penstock.queues q WHERE q.queue_id = p.queue_id)
        FROM penstock.partitions p
        WHERE p.partition_id = s.target
        LIMIT 1
    ) p
    LEFT JOIN LATERAL penstock.newest_segment(s.target) newest ON true;

    PERFORM penstock.refuse_full(p.name)
    FROM unnest(targets, offsets, counts) s (target, base_offset, count)
    JOIN penstock.partitions p ON p.partition_id = s.target
    WHERE s.base_offset + s.count > penstock.offset_limit();

    INSERT INTO penstock.segments (
        partition_id, base_offset, created_at, count, bytes,
        body, body_compressed, ends, keys, key_ends, headers, header_ends
    )
    SELECT
        s.target, s.base_offset, s.created_at, s.count, penstock.packed_bytes(s.body, s.keys, s.headers),
        CASE WHEN NOT s.compressed THEN s.body END, CASE WHEN s.compressed THEN s.body END,
        s.ends, s.keys, s.key_ends, s.headers, s.header_ends
    FROM unnest(
        targets, offsets, times, counts, compressed, bodies, ends, keys, key_ends, headers, header_ends
    ) s (
        target, base_offset, created_at, count, compressed, body, ends, keys, key_ends, headers, header_ends
    );

    IF current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM penstock.wake_partitions(array_agg(t.target), array_agg(t.base_offset))
        FROM (
            SELECT u.target, min(u.base_offset) AS base_offset
            FROM unnest(targets, offsets) u (target, base_offset)
            GROUP BY u.target
        ) t;
    ELSE
        -- This snapshot may show an old state of the groups. The sweep looks at a new one.
        INSERT INTO penstock.late_wakeups (partition_id, base_offset)
        SELECT u.target, min(u.base_offset) FROM unnest(targets, offsets) u (target, base_offset) GROUP BY u.target;
    END IF;
    RETURN QUERY SELECT * FROM unnest(targets, offsets, counts, times);
END
$$;
