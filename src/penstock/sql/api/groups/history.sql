-- penstock.history(queue_name, group_name, partition_name, max_rows)
--
-- Lists the state changes of a partition in a group, newest first: the rows of the journal. It reaches back at least
-- as far as the lease time of its claims, or sixteen rows: acks and the sweep trim older ones.
--
-- Parameters: the names; max_rows - the largest number of rows.
-- Returns: a row per state change. Whoever knows a lease_id can settle the claim, so it is null for all but admins.
-- Calls: is_admin, find_group, find_partition, state_name. Tables: journal (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.history(
    queue_name text, group_name text, partition_name text, max_rows integer DEFAULT 100
)
RETURNS TABLE (
    version bigint, at timestamptz, state text, committed bigint, claimed_to bigint, skipped bigint,
    attempt smallint, due_at timestamptz, lease_id uuid, consumer text, error text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- Looked up before and not within the query, where an empty table would keep it from being asked at all.
    reader integer := penstock.find_group(queue_name, group_name);
    target bigint := penstock.find_partition(queue_name, partition_name);
    admin  boolean := penstock.is_admin();
BEGIN
    RETURN QUERY
    SELECT
        j.version, j.at, penstock.state_name(j.state), j.committed, j.claimed_to, j.skipped,
        j.attempt, j.due_at, CASE WHEN admin THEN j.lease_id END, j.consumer, j.last_error
    FROM penstock.journal j
    WHERE j.group_id = reader AND j.partition_id = target
    ORDER BY j.version DESC
    LIMIT max_rows;
END
$$;
