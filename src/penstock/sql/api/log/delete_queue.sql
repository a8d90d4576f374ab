-- penstock.delete_queue(queue_name)
--
-- Deletes a queue with its partitions, messages, groups and dead letters. Waits at most `penstock.lock_timeout` for
-- pushes that are in progress. A later push creates it again.
--
-- Parameters: queue_name.
-- Returns: the number of messages deleted; raises undefined_object if there is no such queue.
-- Calls: find_queue, use_lock_timeout, lock_queue, delete_partitions. Tables: queues, consumer_groups, dead_letters,
-- archives, archive_files (delete), partitions (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.delete_queue(queue_name text)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    queue    integer := penstock.find_queue(queue_name);
    messages bigint;
BEGIN
    PERFORM penstock.use_lock_timeout();
    -- Partitions first, in the order of a push, or the two deadlock.
    messages := penstock.delete_partitions(
        ARRAY(SELECT p.partition_id FROM penstock.partitions p WHERE p.queue_id = queue)
    );
    -- Against a partition that is being made for this queue right now.
    PERFORM penstock.lock_queue(queue);
    messages := messages + penstock.delete_partitions(
        ARRAY(SELECT p.partition_id FROM penstock.partitions p WHERE p.queue_id = queue)
    );
    DELETE FROM penstock.dead_letters d WHERE d.queue_id = queue;
    DELETE FROM penstock.archive_files f
    USING penstock.archives a
    WHERE a.archive_id = f.archive_id AND a.queue_id = queue;
    DELETE FROM penstock.archives a WHERE a.queue_id = queue;
    DELETE FROM penstock.consumer_groups g WHERE g.queue_id = queue;
    DELETE FROM penstock.queues q WHERE q.queue_id = queue;
    RETURN messages;
END
$$;
