-- penstock.end_at(packed, index, length)
--
-- int32_at for queries that seldom need it: PostgreSQL writes int32_at out wherever it is called, and preparing that
-- costs more than the rest of the query. No push looks at each end, so one may lie outside its column: it is moved to the
-- column's beginning or end.
--
-- Parameters: packed - little-endian int32 end to end; index - which of them, from 0; below 0 is 0; length - of the column.
-- Returns: the number, from 0 to length.
-- Calls: int32_at. Tables: none.
CREATE OR REPLACE FUNCTION penstock.end_at(packed bytea, index integer, length integer)
RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
BEGIN
    RETURN least(greatest(penstock.int32_at(packed, index), 0), length);
END
$$;
