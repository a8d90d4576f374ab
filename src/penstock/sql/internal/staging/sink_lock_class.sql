-- penstock.sink_lock_class()
--
-- The first key of the advisory lock that a writer's publishing takes (the second is a hash of the writer's name).
--
-- Returns: a constant.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.sink_lock_class()
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT 1885695604
$$;
