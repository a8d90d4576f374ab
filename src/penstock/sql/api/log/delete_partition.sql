-- penstock.delete_partition(queue_name, partition_name)
--
-- Deletes a partition and all that belongs to it. Waits for pushes to it that are under way, at most
-- `penstock.lock_timeout`. A later push begins it anew, at offset 0 and with other message ids.
--
-- Parameters: the names.
-- Returns: how many messages went with it; raises undefined_object when there is no such partition.
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
