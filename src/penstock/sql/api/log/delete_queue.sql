-- penstock.delete_queue(queue_name)
--
-- Deletes a queue with its partitions, messages, groups and dead letters. Waits at most `penstock.lock_timeout` for
-- pushes that are in progress. A later push creates it again.
--
-- Parameters: queue_name.
-- Returns: the number of messages deleted; raises undefined_object if there is no such queue.
-- Calls: find_queue, use_lock_timeout, lock_queue, delete_partitions. Tables: queues, dead_letters, archives,
-- archive_files, limited_keys, warm_leases, push_rates (delete), consumer_groups (lock, delete), partitions (read).
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
    -- Groups before what belongs to them: a heartbeat of a window has its group, and then its lease.
    PERFORM 1 FROM penstock.consumer_groups g WHERE g.queue_id = queue ORDER BY g.group_id FOR UPDATE;
    DELETE FROM penstock.dead_letters d WHERE d.queue_id = queue;
    DELETE FROM penstock.archive_files f
    USING penstock.archives a
    WHERE a.archive_id = f.archive_id AND a.queue_id = queue;
    DELETE FROM penstock.archives a WHERE a.queue_id = queue;
    DELETE FROM penstock.limited_keys k
    USING penstock.consumer_groups g
    WHERE g.group_id = k.group_id AND g.queue_id = queue;
    DELETE FROM penstock.warm_leases w
    USING penstock.consumer_groups g
    WHERE g.group_id = w.group_id AND g.queue_id = queue;
    DELETE FROM penstock.push_rates r WHERE r.queue_id = queue;
    DELETE FROM penstock.consumer_groups g WHERE g.queue_id = queue;
    DELETE FROM penstock.queues q WHERE q.queue_id = queue;
    RETURN messages;
END
$$;
