-- penstock.find_poison(flow_name, partition_ids, starts, stops)
--
-- Returns the messages in some ranges at which a step of a flow is known to fail.
--
-- Parameters: parallel arrays, one entry per range.
-- Returns: a row per message.
-- Calls: nothing. Tables: poison (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.find_poison(
    flow_name text, partition_ids bigint[], starts bigint[], stops bigint[]
)
RETURNS TABLE (partition_id bigint, message_offset bigint, reason text, error text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    -- From the poison, of which there is little, to the ranges, of which there may be very many.
    SELECT p.partition_id, p.message_offset, p.reason, p.error
    FROM penstock.poison p
    JOIN unnest(partition_ids, starts, stops) r (partition_id, start, stop)
        ON r.partition_id = p.partition_id AND p.message_offset >= r.start AND p.message_offset < r.stop
    WHERE p.flow_name = find_poison.flow_name
$$;
