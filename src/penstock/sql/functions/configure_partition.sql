-- penstock.configure_partition(queue_name, partition_name, priority)
--
-- Changes a partition, creating it on first use.
--
-- Parameters: priority - higher is served first; null keeps it.
-- Returns: nothing.
-- Calls: ensure_partitions. Tables: partitions (update).
CREATE OR REPLACE FUNCTION penstock.configure_partition(
    queue_name text, partition_name text, priority integer DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF configure_partition.priority NOT BETWEEN -32768 AND 32767 THEN
        RAISE EXCEPTION 'priority is % but must be from -32768 to 32767', configure_partition.priority
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.ensure_partitions(ARRAY[queue_name], ARRAY[partition_name]);
    UPDATE penstock.partitions p
    SET priority = configure_partition.priority
    WHERE p.partition_id = penstock.find_partition(queue_name, partition_name)
      AND p.priority <> configure_partition.priority;
END
$$;
