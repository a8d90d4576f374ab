-- penstock.delete_partition(queue_name, partition_name)
--
-- Deletes a partition with its messages. Waits at most `penstock.lock_timeout` for pushes to it that are in progress.
-- A later push creates it again, from offset 0 and with other message ids.
--
-- Parameters: the names.
-- Returns: the number of messages deleted; raises undefined_object if there is no such partition.
-- Calls: use_lock_timeout, find_partition, delete_partitions. Tables: none of its own.
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.delete_partition(queue_name text, partition_name text)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
BEGIN
    PERFORM penstock.use_lock_timeout();
    RETURN penstock.delete_partitions(ARRAY[penstock.find_partition(queue_name, partition_name)]);
END
$$;
