-- penstock.queue_lock_class()
--
-- The first key of the advisory locks that penstock takes on a queue (the second is the queue's id): shared by
-- whoever adds partitions, exclusive for whoever deletes the queue.
--
-- Returns: a constant.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.queue_lock_class()
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT 1885695603
$$;
