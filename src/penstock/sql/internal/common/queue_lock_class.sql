-- penstock.queue_lock_class()
--
-- Returns the first key of the advisory locks on queues. The first keys of all advisory locks of penstock:
--
-- 1885695603 - a queue (second key: its id). Shared by whoever pushes or adds partitions, exclusive for whoever deletes
-- the queue. With 0 as second key: maintenance.
-- 1885695604 - publishing for a writer (second key: a hash of the writer's name); publish_stages.
-- 1885695605 - a run of `penstock archive` (second key: the queue's id); begin_archive.
-- 1885695606 - making the row of a limited key (second key: 6 bits of a hash of the key); lock_limited_keys.
--
-- Parameters: none.
-- Returns: a constant.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.queue_lock_class()
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT 1885695603
$$;
