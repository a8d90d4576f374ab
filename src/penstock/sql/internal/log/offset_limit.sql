-- penstock.offset_limit()
--
-- Returns the largest number of messages that a partition can ever have: a message id has 42 bits for the offset.
--
-- Parameters: none.
-- Returns: a constant.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.offset_limit()
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT 4398046511104
$$;
