-- penstock.nack(queue_name, group_name, partition_name, lease_id, failed_offset, error, wait)
--
-- Reports that a claim failed and ends it; see fail_claim for the consequences.
--
-- Parameters: the names and the lease id that pop returned; the others as in nack_claim.
-- Returns: 'retry' or 'dead letter'; raises object_not_in_prerequisite_state when the lease is not live.
-- Calls: find_group, find_partition, nack_claim, require_lease. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.nack(
    queue_name text, group_name text, partition_name text, lease_id uuid,
    failed_offset bigint DEFAULT NULL, error text DEFAULT NULL, wait float8 DEFAULT NULL
)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    outcome text := penstock.nack_claim(
        penstock.find_group(queue_name, group_name),
        penstock.find_partition(queue_name, partition_name),
        nack.lease_id, failed_offset, error, NULL, wait
    );
BEGIN
    PERFORM penstock.require_lease(outcome IS NOT NULL);
    RETURN outcome;
END
$$;
