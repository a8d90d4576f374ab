-- penstock.ack(queue_name, group_name, partition_name, lease_id, up_to)
--
-- Acknowledges a claim: SELECT penstock.ack('orders', 'billing', 'customer-7', '…').
--
-- Parameters: the names and the lease id that pop returned; up_to - all below this offset is done, null for all.
-- Returns: nothing; raises object_not_in_prerequisite_state when the lease is not live, and changes nothing then.
-- Calls: find_group, find_partition, ack_claims, ack_ranges, require_lease. Tables: consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.ack(
    queue_name text, group_name text, partition_name text, lease_id uuid, up_to bigint DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    reader integer := penstock.find_group(queue_name, group_name);
    target bigint := penstock.find_partition(queue_name, partition_name);
BEGIN
    PERFORM penstock.require_lease((CASE g.mode
        WHEN 'ordered' THEN penstock.ack_claims(ARRAY[reader], ARRAY[target], ARRAY[ack.lease_id], ARRAY[up_to])
        -- From the beginning to the end of the partition: whatever of it the lease holds.
        ELSE penstock.ack_ranges(
            ARRAY[reader], ARRAY[target], ARRAY[ack.lease_id], ARRAY[0::bigint],
            ARRAY[coalesce(up_to, 9223372036854775807)]
        )
    END)[1])
    FROM penstock.consumer_groups g
    WHERE g.group_id = reader;
END
$$;
