-- penstock.create_partition(queue_name, partition_name, priority)
--
-- Creates a partition that must not exist yet, and its queue on first use. A push creates partitions too.
--
-- Parameters: priority - higher is served first.
-- Returns: nothing; raises duplicate_object when the partition exists.
-- Calls: configure_partition. Tables: queues, partitions (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.create_partition(
    queue_name text, partition_name text, priority integer DEFAULT 0
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM penstock.partitions p JOIN penstock.queues q ON q.queue_id = p.queue_id
        WHERE q.name = queue_name AND p.name = partition_name
    ) THEN
        RAISE EXCEPTION 'partition "%" of queue "%" exists already', partition_name, queue_name
            USING ERRCODE = 'duplicate_object';
    END IF;
    PERFORM penstock.configure_partition(queue_name, partition_name, priority);
END
$$;
