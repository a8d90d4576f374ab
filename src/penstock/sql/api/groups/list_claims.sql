-- penstock.list_claims(queue_name, group_name)
--
-- Lists the claims that are held now: by whom, since when and until when.
--
-- Parameters: null for all queues, or all groups.
-- Returns: a row per claim, the first to expire first. Whoever knows a lease_id can settle the claim, so it is null
-- for all but admins.
-- Calls: is_admin. Tables: queues, consumer_groups, partitions, journal, claims (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_claims(queue_name text DEFAULT NULL, group_name text DEFAULT NULL)
RETURNS TABLE (
    queue text, consumer_group text, partition_name text, group_id integer, partition_id bigint,
    lease_id uuid, consumer text, attempt smallint,
    claimed_from bigint, claimed_to bigint, acquired_at timestamptz, expires_at timestamptz, shared boolean
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        q.name, g.name, p.name, j.group_id, j.partition_id,
        CASE WHEN (SELECT penstock.is_admin()) THEN j.lease_id END, j.consumer, j.attempt,
        j.committed, j.claimed_to,
        coalesce(j.claimed_at, j.at), j.due_at, false
    FROM penstock.journal j
    JOIN penstock.consumer_groups g ON g.group_id = j.group_id
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    JOIN penstock.partitions p ON p.partition_id = j.partition_id
    WHERE j.due_at IS NOT NULL AND j.state = 'c'
      AND (list_claims.queue_name IS NULL OR q.name = list_claims.queue_name)
      AND (list_claims.group_name IS NULL OR g.name = list_claims.group_name)
      AND NOT EXISTS (
          SELECT 1 FROM penstock.journal n
          WHERE n.group_id = j.group_id AND n.partition_id = j.partition_id AND n.version > j.version
      )
    UNION ALL
    SELECT
        q.name, g.name, p.name, c.group_id, c.partition_id,
        CASE WHEN (SELECT penstock.is_admin()) THEN c.lease_id END, c.consumer, c.attempt,
        c.lo, c.hi, c.claimed_at, c.due_at, true
    FROM penstock.claims c
    JOIN penstock.consumer_groups g ON g.group_id = c.group_id
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    JOIN penstock.partitions p ON p.partition_id = c.partition_id
    WHERE c.lease_id IS NOT NULL
      AND (list_claims.queue_name IS NULL OR q.name = list_claims.queue_name)
      AND (list_claims.group_name IS NULL OR g.name = list_claims.group_name)
    ORDER BY 12
$$;
