-- penstock.find_partition(queue_name, partition_name)
--
-- Looks up a partition that must exist.
--
-- Parameters: the names.
-- Returns: the partition's id; raises undefined_object and says which of the two does not exist.
-- Calls: find_queue. Tables: partitions (read).
CREATE OR REPLACE FUNCTION penstock.find_partition(queue_name text, partition_name text)
RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
DECLARE
    queue integer := penstock.find_queue(queue_name);
    found bigint := (
        SELECT p.partition_id FROM penstock.partitions p WHERE p.queue_id = queue AND p.name = partition_name
    );
BEGIN
    IF found IS NULL THEN
        RAISE EXCEPTION 'queue "%" has no partition "%"', queue_name, partition_name
            USING ERRCODE = 'undefined_object',
                  HINT = 'Push to it or create it first; "penstock partitions" lists those there are.';
    END IF;
    RETURN found;
END
$$;
