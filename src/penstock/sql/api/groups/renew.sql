-- penstock.renew(queue_name, group_name, partition_name, lease_id, lease_time)
--
-- Extends the lease of a claim, counted from now.
--
-- Parameters: the names and the lease id that pop returned; lease_time - seconds, null for the group's or the
-- queue's.
-- Returns: the new deadline; raises object_not_in_prerequisite_state when the lease is not live.
-- Calls: find_group, find_partition, renew_claims, require_lease. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.renew(
    queue_name text, group_name text, partition_name text, lease_id uuid, lease_time float8 DEFAULT NULL
)
RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    until timestamptz := (penstock.renew_claims(
        ARRAY[penstock.find_group(queue_name, group_name)],
        ARRAY[penstock.find_partition(queue_name, partition_name)],
        ARRAY[renew.lease_id],
        lease_time
    ))[1];
BEGIN
    PERFORM penstock.require_lease(until IS NOT NULL);
    RETURN until;
END
$$;
