-- penstock.renew_shared(group_ids, partition_ids, lease_ids, lease_time, begun)
--
-- Extends the leases of claims of shared groups; see renew_claims.
--
-- Parameters: as in renew_claims.
-- Returns: for each claim, in the order given, its new deadline, or null where it was not renewed.
-- Calls: lock_leases. Tables: queues, consumer_groups (read), claims (update).
CREATE OR REPLACE FUNCTION penstock.renew_shared(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], lease_time float8, begun boolean
)
RETURNS timestamptz[]
LANGUAGE plpgsql
AS $$
DECLARE
    renewed timestamptz[];
BEGIN
    PERFORM penstock.lock_leases(group_ids, partition_ids, lease_ids);
    WITH renewing AS (
        UPDATE penstock.claims c
        SET due_at = clock_timestamp() + make_interval(
            secs => coalesce(lease_time, (g.config ->> 'lease_time')::float8, (q.settings ->> 'lease_time')::float8)
        ), ahead = c.ahead AND NOT begun
        FROM unnest(group_ids, partition_ids, lease_ids) WITH ORDINALITY u (group_id, partition_id, lease_id, position)
        JOIN penstock.consumer_groups g ON g.group_id = u.group_id
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE c.group_id = u.group_id AND c.partition_id = u.partition_id AND c.lease_id = u.lease_id
          AND c.due_at > clock_timestamp()
        RETURNING u.position, c.due_at
    )
    SELECT array_agg(r.until ORDER BY n) INTO renewed
    FROM generate_series(1, cardinality(lease_ids)) n
    LEFT JOIN LATERAL (SELECT min(r.due_at) AS until FROM renewing r WHERE r.position = n) r ON true;
    RETURN renewed;
END
$$;
