-- penstock.lock_newest(group_ids, partition_ids)
--
-- Locks the newest journal row of each (group, partition), in a fixed order. From the states claimed and timed, the
-- holder of this lock alone may append the next row — after looking again, in a statement of its own, what it says.
--
-- Parameters: parallel arrays.
-- Returns: nothing.
-- Calls: nothing. Tables: journal (lock).
CREATE OR REPLACE FUNCTION penstock.lock_newest(group_ids integer[], partition_ids bigint[])
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    locked numeric;
    seen   numeric;
BEGIN
    -- Most callers want one, and that needs no sums.
    WHILE cardinality(group_ids) = 1 LOOP
        SELECT j.version INTO locked FROM penstock.journal j
        WHERE j.group_id = group_ids[1] AND j.partition_id = partition_ids[1]
        ORDER BY j.version DESC
        LIMIT 1
        FOR UPDATE;
        SELECT j.version INTO seen FROM penstock.journal j
        WHERE j.group_id = group_ids[1] AND j.partition_id = partition_ids[1]
        ORDER BY j.version DESC
        LIMIT 1;
        IF locked IS NOT DISTINCT FROM seen THEN
            RETURN;
        END IF;
    END LOOP;
    LOOP
        SELECT sum(j.version) INTO locked
        FROM (
            SELECT DISTINCT u.group_id, u.partition_id
            FROM unnest(group_ids, partition_ids) u (group_id, partition_id)
            ORDER BY 1, 2
        ) u
        CROSS JOIN LATERAL (
            SELECT j.version FROM penstock.journal j
            WHERE j.group_id = u.group_id AND j.partition_id = u.partition_id
            ORDER BY j.version DESC
            LIMIT 1
            FOR UPDATE
        ) j;
        -- Whoever held a lock before us may have appended a row, which then is the newest. Versions only grow.
        SELECT sum(j.version) INTO seen
        FROM (
            SELECT DISTINCT u.group_id, u.partition_id
            FROM unnest(group_ids, partition_ids) u (group_id, partition_id)
        ) u
        CROSS JOIN LATERAL (
            SELECT max(j.version) AS version FROM penstock.journal j
            WHERE j.group_id = u.group_id AND j.partition_id = u.partition_id
        ) j;
        EXIT WHEN locked IS NOT DISTINCT FROM seen;
    END LOOP;
END
$$;
