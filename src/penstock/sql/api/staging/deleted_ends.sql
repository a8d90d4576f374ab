-- penstock.deleted_ends(partition_ids)
--
-- Returns the heads of deleted partitions, so that a reader that keeps its own positions can check whether it had
-- read them to the end.
--
-- Parameters: partition_ids.
-- Returns: a row per partition that was deleted in the last 30 days from a queue with such a reader.
-- Calls: nothing. Tables: deleted_partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.deleted_ends(partition_ids bigint[])
RETURNS TABLE (partition_id bigint, head_offset bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.partition_id, d.head_offset FROM penstock.deleted_partitions d
    WHERE d.partition_id = ANY (deleted_ends.partition_ids)
$$;
