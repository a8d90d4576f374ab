-- penstock.claims_of_consumers(target_group)
--
-- Counts the claims of a group that consumers hold themselves: not those of the warm tier, of which nobody may have taken
-- anything. Up to 10,000 claims of the group and as many timers of all groups are visited.
--
-- Parameters: target_group.
-- Returns: the number of claims.
-- Calls: nothing. Tables: journal, claims (read).
CREATE OR REPLACE FUNCTION penstock.claims_of_consumers(target_group integer)
RETURNS bigint
LANGUAGE sql STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT count(*)
    FROM (
        SELECT j.consumer
        FROM (SELECT j.* FROM penstock.journal j WHERE j.due_at IS NOT NULL LIMIT 10000) j
        WHERE j.group_id = target_group AND j.state = 'c' AND NOT EXISTS (
            SELECT 1 FROM penstock.journal n
            WHERE n.group_id = j.group_id AND n.partition_id = j.partition_id AND n.version > j.version
        )
        UNION ALL
        SELECT c.consumer
        FROM (SELECT c.* FROM penstock.claims c WHERE c.group_id = target_group LIMIT 10000) c
        WHERE c.lease_id IS NOT NULL
    ) c
    WHERE c.consumer IS DISTINCT FROM 'penstock warm tier'
$$;
