-- penstock.configure_partition(queue_name, partition_name, priority)
--
-- Changes a partition, creating it on first use.
--
-- Parameters: priority - higher is served first; null keeps it. It takes effect with the next entry in the ready
-- list.
-- Returns: nothing.
-- Calls: ensure_partitions, find_partition. Tables: queues, partitions (update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.configure_partition(
    queue_name text, partition_name text, priority integer DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target bigint;
BEGIN
    IF configure_partition.priority NOT BETWEEN -32768 AND 32767 THEN
        RAISE EXCEPTION 'priority is % but must be from -32768 to 32767', configure_partition.priority
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.ensure_partitions(ARRAY[queue_name], ARRAY[partition_name]);
    UPDATE penstock.queues q
    SET priorities = ARRAY(
        SELECT DISTINCT level FROM unnest(q.priorities || configure_partition.priority::smallint) level ORDER BY 1 DESC
    )
    WHERE q.name = queue_name AND configure_partition.priority <> ALL (q.priorities);
    -- Not within the update: its plan would be made with a snapshot in which a new partition does not exist yet.
    target := penstock.find_partition(queue_name, partition_name);
    UPDATE penstock.partitions p
    SET priority = configure_partition.priority
    WHERE p.partition_id = target
      AND p.priority <> configure_partition.priority;
END
$$;
