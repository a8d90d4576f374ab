-- penstock.get(id)
--
-- Finds one message by its id: SELECT * FROM penstock.get('…').
--
-- Parameters: id - a message id.
-- Returns: the message with its queue and partition; no row when there is none, or no longer.
-- Calls: get_segment, unpack. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.get(id uuid)
RETURNS TABLE (
    queue_name text, partition_name text,
    message_offset bigint, key text, payload bytea, headers jsonb, created_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.queue_name, s.partition_name, m.message_offset, m.message_key, m.payload, m.message_headers, m.message_time
    FROM penstock.get_segment(get.id) s
    CROSS JOIN LATERAL penstock.unpack(
        s.partition_id, s.base_offset, s.count, s.created_at, s.run_skip, s.run_counts, s.run_times,
        s.body_start, s.body, s.ends, s.key_start, s.keys, s.key_ends, s.header_start, s.headers, s.header_ends
    ) m
$$;
