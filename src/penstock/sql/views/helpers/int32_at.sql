-- penstock.int32_at(packed, index)
--
-- Reads one little-endian int32 out of a packed column of ends.
--
-- Parameters: packed - four bytes per entry; index - from 0; -1 reads as 0, where the first value begins.
-- Returns: the entry.
-- Calls: nothing. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.int32_at(packed bytea, index integer)
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN index < 0 THEN 0 ELSE
        get_byte(packed, 4 * index)
        | (get_byte(packed, 4 * index + 1) << 8)
        | (get_byte(packed, 4 * index + 2) << 16)
        | (get_byte(packed, 4 * index + 3) << 24)
    END
$$;
