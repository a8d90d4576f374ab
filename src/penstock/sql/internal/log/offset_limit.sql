-- penstock.offset_limit()
--
-- How many messages a partition can have in all its life: a message id has 42 bits for the offset.
--
-- Returns: a constant.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.offset_limit()
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT 4398046511104
$$;
