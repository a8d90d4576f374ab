-- penstock.ack(queue_name, group_name, partition_name, lease_id, up_to)
--
-- Acknowledges a claim: SELECT penstock.ack('orders', 'billing', 'customer-7', '…').
--
-- Parameters: the names and the lease id that pop returned; up_to - all below this offset is done, null for all.
-- Returns: nothing; raises object_not_in_prerequisite_state when the lease is not live, and changes nothing then.
-- Calls: find_group, find_partition, ack_claims, require_lease. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.ack(
    queue_name text, group_name text, partition_name text, lease_id uuid, up_to bigint DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.require_lease((penstock.ack_claims(
        ARRAY[penstock.find_group(queue_name, group_name)],
        ARRAY[penstock.find_partition(queue_name, partition_name)],
        ARRAY[ack.lease_id],
        NULL,
        ARRAY[up_to]
    ))[1]);
END
$$;
