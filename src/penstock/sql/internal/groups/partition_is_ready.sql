-- penstock.partition_is_ready(of_group, of_partition)
--
-- Returns whether the ready list has an entry of a group for one partition: its own, or that of a range of a shared
-- group. It has more settings than its caller, which is called much more often without a partition.
--
-- Parameters: the ids of the group and the partition.
-- Returns: whether there is an entry.
-- Calls: newest_state. Tables: ready (read).
CREATE OR REPLACE FUNCTION penstock.partition_is_ready(of_group integer, of_partition bigint)
RETURNS boolean
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
-- Planned for a small table, the key of the ready list seems as good as the index on ranges, with a sort behind it; then
-- all entries of the group are read.
SET enable_sort = off
SET enable_bitmapscan = off
AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM penstock.newest_state(of_group, of_partition) j WHERE j.state = 'r'
    ) OR (
        SELECT y.lo FROM penstock.ready y
        WHERE y.group_id = of_group AND y.partition_id = of_partition AND y.lo >= 0
        ORDER BY y.lo
        LIMIT 1
    ) IS NOT NULL;
END
$$;
