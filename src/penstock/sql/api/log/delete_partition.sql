-- penstock.delete_partition(queue_name, partition_name)
--
-- Deletes a partition with its messages. Waits at most `penstock.lock_timeout` for pushes to it that are in progress, and for
-- whoever is settling its claims.
-- A later push creates it again, from offset 0 and with other message ids.
--
-- Parameters: the names.
-- Returns: the number of messages deleted; raises undefined_object if there is no such partition.
-- Calls: use_lock_timeout, find_partition, lock_newest, delete_partitions. Tables: partitions, consumer_groups (read), claims
-- (lock).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.delete_partition(queue_name text, partition_name text)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    target  bigint := penstock.find_partition(queue_name, partition_name);
    readers integer[];
BEGIN
    PERFORM penstock.use_lock_timeout();
    -- Claims first and the partition then, as whoever settles and pushes has it: else each could wait for the other.
    readers := ARRAY(
        SELECT g.group_id
        FROM penstock.partitions p
        JOIN penstock.consumer_groups g ON g.queue_id = p.queue_id
        WHERE p.partition_id = target
        ORDER BY g.group_id
    );
    PERFORM penstock.lock_newest(readers, array_fill(target, ARRAY[cardinality(readers)]));
    PERFORM 1 FROM penstock.claims c
    WHERE c.group_id = ANY (readers) AND c.partition_id = target
    ORDER BY c.group_id, c.lo
    FOR UPDATE;
    RETURN penstock.delete_partitions(ARRAY[target]);
END
$$;
