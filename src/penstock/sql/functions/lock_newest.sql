-- penstock.lock_newest(group_ids, partition_ids)
--
-- Locks the newest journal row of each (group, partition), in a fixed order. From the states claimed and timed, the
-- holder of this lock alone may append the next row — after looking again, in a statement of its own, whether the row
-- it locked still is the newest.
--
-- Parameters: parallel arrays.
-- Returns: nothing.
-- Calls: nothing. Tables: journal (lock).
CREATE OR REPLACE FUNCTION penstock.lock_newest(group_ids integer[], partition_ids bigint[])
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1
    FROM (
        SELECT DISTINCT u.group_id, u.partition_id
        FROM unnest(group_ids, partition_ids) u (group_id, partition_id)
        ORDER BY 1, 2
    ) u
    CROSS JOIN LATERAL (
        SELECT 1 FROM penstock.journal j
        WHERE j.group_id = u.group_id AND j.partition_id = u.partition_id
        ORDER BY j.version DESC
        LIMIT 1
        FOR UPDATE
    ) j;
END
$$;
