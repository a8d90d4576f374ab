-- penstock.lock_items(group_ids, partition_ids, lease_ids, offsets)
--
-- Locks claims, so that nobody ends them before the caller's transaction has ended, and says of which items they have.
--
-- Parameters: parallel arrays, an entry per item.
-- Returns: for each, in the order given, whether its lease is live and the item is not settled yet.
-- Calls: lock_newest, lock_leases, newest_state. Tables: consumer_groups, claims (read).
CREATE OR REPLACE FUNCTION penstock.lock_items(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], offsets bigint[]
)
RETURNS boolean[]
LANGUAGE plpgsql
AS $$
BEGIN
    -- Ordered groups first, as in ack_mixed: all callers take the locks in the same order.
    PERFORM penstock.lock_newest(array_agg(u.group_id), array_agg(u.partition_id))
    FROM unnest(group_ids, partition_ids) u (group_id, partition_id)
    JOIN penstock.consumer_groups g ON g.group_id = u.group_id AND g.mode = 'ordered'
    HAVING count(*) > 0;
    PERFORM penstock.lock_leases(array_agg(u.group_id), array_agg(u.partition_id), array_agg(u.lease_id))
    FROM unnest(group_ids, partition_ids, lease_ids) u (group_id, partition_id, lease_id)
    JOIN penstock.consumer_groups g ON g.group_id = u.group_id AND g.mode = 'shared'
    HAVING count(*) > 0;
    -- A new statement, hence a new snapshot: whoever held the locks before us may have ended a claim.
    RETURN ARRAY(
        SELECT EXISTS (
            SELECT 1 FROM penstock.newest_state(u.group_id, u.partition_id) j
            WHERE j.state = 'c' AND j.lease_id = u.lease_id AND j.due_at > clock_timestamp()
              AND u.message_offset >= j.committed AND u.message_offset < j.claimed_to
        ) OR EXISTS (
            SELECT 1 FROM penstock.claims c
            WHERE c.group_id = u.group_id AND c.partition_id = u.partition_id AND c.lease_id = u.lease_id
              AND c.due_at > clock_timestamp() AND u.message_offset >= c.lo AND u.message_offset < c.hi
        )
        FROM unnest(group_ids, partition_ids, lease_ids, offsets) WITH ORDINALITY
            u (group_id, partition_id, lease_id, message_offset, position)
        ORDER BY u.position
    );
END
$$;
