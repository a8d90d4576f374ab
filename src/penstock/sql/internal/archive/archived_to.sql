-- penstock.archived_to(target)
--
-- Returns the offset up to which a partition is archived. The next archive begins there.
--
-- Parameters: target - the partition.
-- Returns: the offset; 0 if nothing is archived.
-- Calls: nothing. Tables: archived (read).
CREATE OR REPLACE FUNCTION penstock.archived_to(target bigint)
RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT coalesce((
        SELECT a.stop_offset FROM penstock.archived a
        WHERE a.partition_id = target
        ORDER BY a.start_offset DESC
        LIMIT 1
    ), 0)
$$;
