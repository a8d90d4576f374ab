-- penstock.read(queue_name, partition_name, start_offset, stop_offset, start_time, stop_time)
--
-- Reads a range of a partition, a row per message: SELECT * FROM penstock.read('orders', '0', 100, 200).
--
-- Parameters: the range by offsets (they start at 0; the stop is not included), by times, or both.
-- Returns: a row per message, in order.
-- Calls: read_segments, unpack. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.read(
    queue_name     text,
    partition_name text,
    start_offset   bigint      DEFAULT 0,
    stop_offset    bigint      DEFAULT NULL,
    start_time     timestamptz DEFAULT NULL,
    stop_time      timestamptz DEFAULT NULL
)
RETURNS TABLE (id uuid, message_offset bigint, key text, payload bytea, headers jsonb, created_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT m.*
    FROM penstock.read_segments(
        queue_name, partition_name, start_offset, stop_offset, start_time, stop_time, 9223372036854775807
    ) s
    CROSS JOIN LATERAL penstock.unpack(
        s.partition_id, s.base_offset, s.count, s.created_at, s.run_skip, s.run_counts, s.run_times,
        s.body_start, s.body, s.ends, s.key_start, s.keys, s.key_ends, s.header_start, s.headers, s.header_ends
    ) m
$$;
