-- penstock.message_id(partition_id, message_offset, created_at)
--
-- Computes a message's id: a UUIDv8 that is an address. 48 bits of milliseconds since 1970, 32 bits of
-- partition id, 42 bits of offset, and the 6 bits that mark a UUIDv8. Ids sort by time, then by partition and offset.
--
-- Parameters: the message's partition, its offset there, and its time.
-- Returns: the id.
-- Calls: nothing. Tables: none.
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.message_id(
    partition_id bigint, message_offset bigint, created_at timestamptz
)
RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT (
        lpad(to_hex(
            (floor(extract(epoch FROM created_at) * 1000)::bigint << 16) | 32768 | (partition_id >> 20)
        ), 16, '0')
        || to_hex((-9223372036854775808) | ((partition_id & 1048575) << 42) | message_offset)
    )::uuid
$$;
