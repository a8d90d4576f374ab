-- penstock.lock_unique(queues, keys)
--
-- Locks unique keys until the end of the transaction, and inserts a row for those that have none. One statement in the
-- order of keys, so that two callers wait for each other and never deadlock. The caller holds the partitions' locks.
--
-- Parameters: parallel arrays: the id of a queue, and a key of it.
-- Returns: nothing.
-- Calls: nothing. Tables: unique_keys (insert, lock).
CREATE OR REPLACE FUNCTION penstock.lock_unique(queues integer[], keys text[])
RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO penstock.unique_keys AS k (queue_id, unique_key)
    SELECT w.queue_id, w.unique_key
    FROM unnest(queues, keys) w (queue_id, unique_key)
    ORDER BY w.queue_id, w.unique_key COLLATE "C"
    -- The row of a conflict is locked, whether or not the condition holds; so nothing is written where it exists.
    ON CONFLICT ON CONSTRAINT unique_keys_pkey DO UPDATE SET keep_for = k.keep_for WHERE false
$$;
