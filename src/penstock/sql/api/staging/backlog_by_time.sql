-- penstock.backlog_by_time(partition_ids, starts, stops, max_messages, max_pieces)
--
-- Returns when the messages of ranges were pushed and how large they are, so that a reader can take the oldest of
-- many partitions first. Messages of one second and partition are one piece. It reads segment rows without their
-- payload; each message counts as the average of its segment.
--
-- Parameters: parallel arrays, one entry per range; max_messages - the rest of a range after so many messages is left
-- out (but a segment is counted as a whole); max_pieces - the largest number of segments of a range, and of pushes of
-- a merged segment, to look at.
-- Returns: one row of parallel arrays, in the order of the ranges and of their offsets: the position of the range
-- (from 1), the first offset of a piece, its messages and bytes, and its second since 1970. Messages that retention
-- dropped are left out. If the last piece of a range ends before the range, the range has more.
-- Calls: partition_span, run_of. Tables: segments, archived (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.backlog_by_time(
    partition_ids bigint[], starts bigint[], stops bigint[], max_messages bigint, max_pieces integer
)
RETURNS TABLE (range_positions bigint[], first_offsets bigint[], messages bigint[], bytes bigint[], seconds bigint[])
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT
        array_agg(p.position), array_agg(p.first_offset), array_agg(p.messages), array_agg(p.bytes), array_agg(p.second)
    FROM (
        SELECT
            r.position, x.second, min(x.lo) AS first_offset, sum(x.hi - x.lo)::bigint AS messages,
            sum((x.hi - x.lo) * s.average)::bigint AS bytes
        FROM unnest(partition_ids, starts, stops) WITH ORDINALITY r (partition_id, start, stop, position)
        CROSS JOIN LATERAL (
            SELECT s.*
            FROM (
                SELECT s.*, sum(s.count) OVER (ORDER BY s.base_offset) - s.count AS messages_before
                FROM (
                    -- Where the log begins later than the range, the archive comes before it.
                    (SELECT
                        a.start_offset AS base_offset, least(a.stop_offset, p.floor_offset) - a.start_offset AS count,
                        a.bytes::float8 / (a.stop_offset - a.start_offset) AS average, a.first_time AS created_at,
                        a.last_time, NULL::integer[] AS run_counts, NULL::timestamptz[] AS run_times
                    FROM penstock.archived a
                    CROSS JOIN LATERAL (
                        SELECT p.floor_offset FROM penstock.partition_span(r.partition_id) p
                    ) p
                    WHERE a.partition_id = r.partition_id AND a.stop_offset > r.start AND a.start_offset < r.stop
                      AND a.start_offset < p.floor_offset
                    ORDER BY a.start_offset
                    LIMIT max_pieces)
                    UNION ALL
                    (SELECT
                        s.base_offset, s.count, s.bytes::float8 / s.count, s.created_at, s.created_at,
                        s.run_counts, s.run_times
                    FROM penstock.segments s
                    WHERE s.partition_id = r.partition_id
                      AND s.base_offset >= coalesce((
                          SELECT f.base_offset FROM penstock.segments f
                          WHERE f.partition_id = r.partition_id AND f.base_offset <= r.start
                          ORDER BY f.base_offset DESC
                          LIMIT 1
                      ), 0)
                      AND s.base_offset < r.stop AND s.base_offset + s.count > r.start AND s.ends IS NOT NULL
                    ORDER BY s.base_offset
                    LIMIT max_pieces)
                ) s
            ) s
            -- The first one may begin long before the range.
            WHERE s.messages_before < max_messages + greatest(r.start - s.base_offset, 0)
            ORDER BY s.base_offset
            LIMIT max_pieces
        ) s
        CROSS JOIN LATERAL (
            SELECT
                greatest(t.lo, r.start) AS lo, least(t.hi, r.stop) AS hi, floor(extract(epoch FROM t.at))::bigint AS second
            FROM (
                SELECT s.base_offset AS lo, s.base_offset + s.count AS hi, s.created_at AS at
                WHERE s.run_counts IS NULL AND s.last_time = s.created_at
                UNION ALL
                -- Of what is archived only the first and the last time are known; the others are taken to lie evenly.
                SELECT
                    s.base_offset + s.count * i / n.parts, s.base_offset + s.count * (i + 1) / n.parts,
                    s.created_at + (s.last_time - s.created_at) * i / n.parts
                FROM (SELECT least(s.count, 16) AS parts) n
                CROSS JOIN LATERAL generate_series(0, n.parts - 1) i
                WHERE s.run_counts IS NULL AND s.last_time > s.created_at
                UNION ALL
                SELECT s.base_offset + u.before + u.upto - u.count, s.base_offset + u.before + u.upto, u.at
                FROM (
                    SELECT c.count, c.at, f.run[2] AS before, sum(c.count) OVER (ORDER BY c.position) AS upto
                    FROM (
                        SELECT CASE WHEN r.start <= s.base_offset OR s.run_counts IS NULL THEN ARRAY[1, 0]
                            ELSE penstock.run_of(s.run_counts, (r.start - s.base_offset)::integer, s.count::integer) END
                            AS run
                    ) f
                    CROSS JOIN LATERAL unnest(
                        s.run_counts[f.run[1] : f.run[1] + max_pieces - 1],
                        s.run_times[f.run[1] : f.run[1] + max_pieces - 1]
                    ) WITH ORDINALITY c (count, at, position)
                ) u
                WHERE s.run_counts IS NOT NULL
            ) t
            WHERE t.hi > r.start AND t.lo < r.stop
        ) x
        -- Staged segments have negative partition ids and are not visible here.
        WHERE r.partition_id > 0
        GROUP BY r.position, x.second
        ORDER BY r.position, x.second
    ) p
$$;
