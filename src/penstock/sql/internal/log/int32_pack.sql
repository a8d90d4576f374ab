-- penstock.int32_pack(value)
--
-- Writes one int32 as four little-endian bytes, the form of `ends`.
--
-- Parameters: value - the number.
-- Returns: four bytes.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.int32_pack(value integer)
RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT substring(b FROM 4 FOR 1) || substring(b FROM 3 FOR 1) || substring(b FROM 2 FOR 1) || substring(b FROM 1 FOR 1)
    FROM int4send(value) b
$$;
