-- penstock.push_json(queue_name, message, partition_name, key, headers)
--
-- Pushes one JSON message: SELECT penstock.push_json('orders', '{"id": 7}').
--
-- Parameters: as in push, for one message. SQL's null is a null value; JSON's null is the text null.
-- Returns: the message's id.
-- Calls: push, message_id. Tables: none.
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.push_json(
    queue_name     text,
    message        jsonb,
    partition_name text  DEFAULT NULL,
    key            text  DEFAULT NULL,
    headers        jsonb DEFAULT NULL
)
RETURNS uuid
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT penstock.message_id(p.partition_id, p.first_offset, p.created_at)
    FROM penstock.push(
        queue_name, ARRAY[convert_to(message::text, 'UTF8')], partition_name, ARRAY[key], ARRAY[headers]
    ) p
$$;
