-- penstock.archive_lock_class()
--
-- The first key of the advisory lock that a run of `penstock archive` holds while it lasts (the second is the queue's
-- id).
--
-- Returns: a constant.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.archive_lock_class()
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT 1885695605
$$;
