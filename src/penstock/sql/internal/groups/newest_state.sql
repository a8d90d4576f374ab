-- penstock.newest_state(of_group, of_partition)
--
-- Returns the state of a group in a partition: the newest row of the journal. PostgreSQL inlines it, so it costs what
-- the query costs; do not give it options that prevent that (STRICT, SET, SECURITY DEFINER). To lock the row, see
-- lock_newest. Views cannot call it: a view's functions run as its reader, who may not see the table.
--
-- Parameters: the ids of the group and the partition.
-- Returns: one row, or none where the group has not begun the partition.
-- Calls: nothing. Tables: journal (read).
CREATE OR REPLACE FUNCTION penstock.newest_state(of_group integer, of_partition bigint)
RETURNS SETOF penstock.journal
LANGUAGE sql STABLE
AS $$
    SELECT j.* FROM penstock.journal j
    WHERE j.group_id = of_group AND j.partition_id = of_partition
    ORDER BY j.version DESC
    LIMIT 1
$$;
