-- penstock.packed_bytes(body, keys, headers)
--
-- Returns the size of a segment as readers and retention count it.
--
-- Parameters: the packed columns, null where unused.
-- Returns: bytes.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.packed_bytes(body bytea, keys bytea, headers bytea)
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT octet_length(body) + coalesce(octet_length(keys), 0) + coalesce(octet_length(headers), 0)
$$;
