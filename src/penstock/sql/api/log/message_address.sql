-- penstock.message_address(id)
--
-- Reads the address out of a message's id: the inverse of message_id.
--
-- Parameters: id - a message id.
-- Returns: partition, offset and time (in whole milliseconds); no row when the uuid is not a message id.
-- Calls: nothing. Tables: none.
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.message_address(id uuid)
RETURNS TABLE (partition_id bigint, message_offset bigint, created_ms bigint)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT
        ((high & 4095) << 20) | ((low >> 42) & 1048575),
        low & 4398046511103,
        (high >> 16) & 281474976710655
    FROM (
        SELECT
            ('x' || left(hex, 16))::bit(64)::bigint AS high,
            ('x' || right(hex, 16))::bit(64)::bigint AS low
        FROM replace(id::text, '-', '') hex
    ) halves
    WHERE (high >> 12) & 15 = 8 AND (low >> 62) & 3 = 2
$$;
