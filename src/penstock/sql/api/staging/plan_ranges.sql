-- penstock.plan_ranges(partition_ids, starts, stops, page_bytes)
--
-- Cuts ranges of offsets into pages of about page_bytes, at the borders of segments. It reads segment rows without
-- their payload.
--
-- Parameters: parallel arrays, one entry per range; page_bytes - the size of a page.
-- Returns: the pages, in the order of the ranges and of their offsets; messages that retention dropped are in none.
-- Calls: nothing. Tables: segments (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.plan_ranges(
    partition_ids bigint[], starts bigint[], stops bigint[], page_bytes bigint DEFAULT 8388608
)
RETURNS TABLE (partition_id bigint, start_offset bigint, stop_offset bigint, bytes bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT r.partition_id, s.start_offset, s.stop_offset, s.bytes
    FROM unnest(partition_ids, starts, stops) WITH ORDINALITY r (partition_id, start, stop, position)
    CROSS JOIN LATERAL (
        SELECT
            greatest(min(s.base_offset), r.start) AS start_offset,
            least(max(s.base_offset + s.count), r.stop) AS stop_offset,
            -- A part of a segment counts as a part of its bytes.
            sum(s.bytes::bigint * (least(s.base_offset + s.count, r.stop) - greatest(s.base_offset, r.start)) / s.count)
                ::bigint AS bytes
        FROM (
            SELECT
                s.base_offset, s.count, s.bytes,
                (sum(s.bytes) OVER (ORDER BY s.base_offset) - s.bytes) / page_bytes AS page
            FROM penstock.segments s
            WHERE s.partition_id = r.partition_id
              AND s.base_offset >= coalesce((
                  SELECT f.base_offset FROM penstock.segments f
                  WHERE f.partition_id = r.partition_id AND f.base_offset <= r.start
                  ORDER BY f.base_offset DESC
                  LIMIT 1
              ), 0)
              AND s.base_offset < r.stop AND s.base_offset + s.count > r.start AND s.ends IS NOT NULL
        ) s
        GROUP BY s.page
    ) s
    -- Staged segments have negative partition ids and are not visible here.
    WHERE r.partition_id > 0
    ORDER BY r.position, s.start_offset
$$;
