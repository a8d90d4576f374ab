-- penstock.spend_bytes(partition_ids, starts, stops, max_bytes)
--
-- Shortens ranges so that each has at most max_bytes, but at least one message. Each message counts as the average of
-- its segment. Readers of versions before backlog_by_time call it.
--
-- Parameters: parallel arrays, one entry per range; max_bytes - for each of them.
-- Returns: a row per range, in the order given: its new end, and its approximate bytes.
-- Calls: partition_span. Tables: segments, archived (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.spend_bytes(
    partition_ids bigint[], starts bigint[], stops bigint[], max_bytes bigint
)
RETURNS TABLE (stop_offset bigint, bytes bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    segment record;
    first   bigint;
    taken   bigint;
    average float8;
BEGIN
    FOR i IN 1 .. coalesce(cardinality(partition_ids), 0) LOOP
        stop_offset := stops[i];
        bytes := 0;
        FOR segment IN
            -- Where the log begins later than the range, the archive comes before it.
            SELECT a.base_offset, a.count, a.bytes
            FROM penstock.partition_span(partition_ids[i]) p
            CROSS JOIN LATERAL (
                SELECT
                    a.start_offset AS base_offset, least(a.stop_offset, p.floor_offset) - a.start_offset AS count,
                    a.bytes * (least(a.stop_offset, p.floor_offset) - a.start_offset)
                        / (a.stop_offset - a.start_offset) AS bytes
                FROM penstock.archived a
                WHERE a.partition_id = partition_ids[i] AND starts[i] < p.floor_offset
                  AND a.start_offset < least(stops[i], p.floor_offset) AND a.stop_offset > starts[i]
                ORDER BY a.start_offset
            ) a
            UNION ALL
            (SELECT s.base_offset, s.count, s.bytes FROM penstock.segments s
            WHERE s.partition_id = partition_ids[i]
              AND s.base_offset >= coalesce((
                  SELECT f.base_offset FROM penstock.segments f
                  WHERE f.partition_id = partition_ids[i] AND f.base_offset <= starts[i]
                  ORDER BY f.base_offset DESC
                  LIMIT 1
              ), 0)
              AND s.base_offset < stops[i] AND s.base_offset + s.count > starts[i]
              -- Staged segments have negative partition ids and are not visible here.
              AND s.partition_id > 0
            ORDER BY s.base_offset)
        LOOP
            first := greatest(segment.base_offset, starts[i]);
            average := segment.bytes::float8 / segment.count;
            taken := least(segment.base_offset + segment.count, stops[i]) - first;
            IF bytes + average * taken > max_bytes THEN
                taken := least(taken, greatest(
                    floor((max_bytes - bytes) / greatest(average, 1))::bigint, (first = starts[i])::integer
                ));
                stop_offset := first + taken;
                bytes := bytes + (average * taken)::bigint;
                EXIT;
            END IF;
            bytes := bytes + (average * taken)::bigint;
        END LOOP;
        RETURN NEXT;
    END LOOP;
END
$$;
