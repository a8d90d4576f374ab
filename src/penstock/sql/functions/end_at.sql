-- penstock.end_at(packed, index)
--
-- int32_at for queries that seldom need it: PostgreSQL writes int32_at out wherever it is called, and preparing that
-- costs more than the rest of the query.
--
-- Parameters: packed - little-endian int32 end to end; index - which of them, from 0; below 0 is 0.
-- Returns: the number.
-- Calls: int32_at. Tables: none.
CREATE OR REPLACE FUNCTION penstock.end_at(packed bytea, index integer)
RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
BEGIN
    RETURN penstock.int32_at(packed, index);
END
$$;
