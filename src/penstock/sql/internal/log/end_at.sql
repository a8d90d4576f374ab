-- penstock.end_at(packed, index, length)
--
-- Does what int32_at does, for queries that seldom need it: PostgreSQL inlines int32_at wherever it is called, and
-- planning that costs more than the rest of the query. Pushes do not check each end, so one may be outside its
-- column: it is moved to the column's beginning or end.
--
-- Parameters: packed - little-endian int32 numbers; index - from 0; below 0 reads as 0; length - of the column.
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
