-- penstock.stop_after_bytes(partition_id, start_offset, stop_offset, max_bytes)
--
-- Shortens a range so that it holds about max_bytes: it ends with the segment that reaches them, so that there is
-- always at least one message. Looks at the rows only, never at the payload.
--
-- Parameters: the range, and how many bytes are wanted.
-- Returns: the offset to stop before, at most stop_offset.
-- Calls: nothing. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.stop_after_bytes(
    partition_id bigint, start_offset bigint, stop_offset bigint, max_bytes bigint
)
RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
DECLARE
    segment record;
    total   bigint := 0;
BEGIN
    FOR segment IN
        SELECT s.base_offset + s.count AS next_offset, s.bytes
        FROM penstock.segments s
        WHERE s.partition_id = stop_after_bytes.partition_id
          AND s.base_offset + s.count > start_offset
          AND s.base_offset >= coalesce((
              SELECT f.base_offset FROM penstock.segments f
              WHERE f.partition_id = stop_after_bytes.partition_id AND f.base_offset <= start_offset
              ORDER BY f.base_offset DESC
              LIMIT 1
          ), 0)
          AND s.base_offset < stop_offset
        ORDER BY s.base_offset
    LOOP
        total := total + segment.bytes;
        IF total >= max_bytes THEN
            RETURN least(segment.next_offset, stop_offset);
        END IF;
    END LOOP;
    RETURN stop_offset;
END
$$;
