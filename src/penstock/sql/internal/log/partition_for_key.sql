-- penstock.partition_for_key(key, spread)
--
-- Selects the partition of a message that has a key and no partition: the first four bytes of the key's SHA-256,
-- modulo the queue's spread. The same key always selects the same partition, in every client.
--
-- Parameters: key - the message's key; spread - the queue's setting.
-- Returns: the partition's name, '0' to spread - 1.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.partition_for_key(key text, spread integer)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT ((('x' || left(encode(sha256(convert_to(key, 'UTF8')), 'hex'), 8))::bit(32)::bigint & 4294967295) % spread)::text
$$;
