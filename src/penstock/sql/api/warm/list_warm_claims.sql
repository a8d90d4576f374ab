-- penstock.list_warm_claims(target_group, holder, quiet_for)
--
-- Lists the claims that a dispatcher has for the window of a group, so that the next one can give back those that are
-- not in Valkey.
--
-- Parameters: target_group; holder - the consumer's name under which dispatchers claim; quiet_for - in an ordered group
-- only claims that nobody has renewed, nor acknowledged anything of, for so many seconds.
-- Returns: a row per claim.
-- Calls: nothing. Tables: journal, claims (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_warm_claims(
    target_group integer, holder text, quiet_for float8 DEFAULT 0
)
RETURNS TABLE (partition_id bigint, lease_id uuid)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT j.partition_id, j.lease_id FROM penstock.journal j
    WHERE j.due_at IS NOT NULL AND j.state = 'c' AND j.group_id = target_group AND j.consumer = holder
      AND j.at <= clock_timestamp() - make_interval(secs => quiet_for)
      AND NOT EXISTS (
          SELECT 1 FROM penstock.journal n
          WHERE n.group_id = j.group_id AND n.partition_id = j.partition_id AND n.version > j.version
      )
    UNION
    SELECT c.partition_id, c.lease_id FROM penstock.claims c
    WHERE c.group_id = target_group AND c.consumer = holder AND c.lease_id IS NOT NULL
$$;
