-- penstock.lock_leases(group_ids, partition_ids, lease_ids)
--
-- Locks all rows of claims of shared groups, in a fixed order. Only the holder may end or change them, after reading
-- them again in a statement of its own.
--
-- Parameters: parallel arrays.
-- Returns: nothing.
-- Calls: nothing. Tables: claims (lock).
CREATE OR REPLACE FUNCTION penstock.lock_leases(group_ids integer[], partition_ids bigint[], lease_ids uuid[])
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    locked bigint;
BEGIN
    LOOP
        PERFORM 1
        FROM (
            SELECT DISTINCT u.group_id, u.partition_id, u.lease_id
            FROM unnest(group_ids, partition_ids, lease_ids) u (group_id, partition_id, lease_id)
            ORDER BY 1, 2, 3
        ) u
        CROSS JOIN LATERAL (
            SELECT 1 FROM penstock.claims c
            WHERE c.group_id = u.group_id AND c.partition_id = u.partition_id AND c.lease_id = u.lease_id
            ORDER BY c.lo
            FOR UPDATE
        ) c;
        GET DIAGNOSTICS locked = ROW_COUNT;
        -- The holder of the lock before us may have acknowledged a part and inserted the rest.
        EXIT WHEN locked = (
            SELECT count(*) FROM (
                SELECT DISTINCT u.group_id, u.partition_id, u.lease_id
                FROM unnest(group_ids, partition_ids, lease_ids) u (group_id, partition_id, lease_id)
            ) u
            JOIN penstock.claims c
                ON c.group_id = u.group_id AND c.partition_id = u.partition_id AND c.lease_id = u.lease_id
        );
    END LOOP;
END
$$;
