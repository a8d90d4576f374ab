-- penstock.add_poison(flow_name, partition_ids, offsets, reason, errors)
--
-- Records messages at which a step of a flow fails. The flow's source makes dead letters of them when it reads them
-- again.
--
-- Parameters: parallel arrays; reason - of all of them.
-- Returns: nothing.
-- Calls: nothing. Tables: poison (insert).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.add_poison(
    flow_name text, partition_ids bigint[], offsets bigint[], reason text, errors text[]
)
RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO penstock.poison (flow_name, partition_id, message_offset, reason, error)
    SELECT add_poison.flow_name, w.partition_id, w.message_offset, add_poison.reason, w.error
    FROM unnest(partition_ids, offsets, errors) w (partition_id, message_offset, error)
    ON CONFLICT DO NOTHING
$$;
