-- penstock.renew_ordered(group_ids, partition_ids, lease_ids, lease_time)
--
-- Extends the leases of claims of ordered groups; see renew_claims.
--
-- Parameters: as in renew_claims.
-- Returns: for each claim, in the order given, its new deadline, or null where it was not renewed.
-- Calls: lock_newest, newest_state, append_state. Tables: queues, consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.renew_ordered(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], lease_time float8
)
RETURNS timestamptz[]
LANGUAGE plpgsql
AS $$
DECLARE
    renewing record;
    claim    penstock.journal;
    renewed  timestamptz[] := array_fill(NULL::timestamptz, ARRAY[cardinality(lease_ids)]);
BEGIN
    PERFORM penstock.lock_newest(group_ids, partition_ids);
    FOR renewing IN
        SELECT u.position, j AS claim, clock_timestamp() + make_interval(
            secs => coalesce(lease_time, (g.config ->> 'lease_time')::float8, (q.settings ->> 'lease_time')::float8)
        ) AS until
        FROM unnest(group_ids, partition_ids, lease_ids) WITH ORDINALITY
            u (group_id, partition_id, lease_id, position)
        CROSS JOIN LATERAL penstock.newest_state(u.group_id, u.partition_id) j
        JOIN penstock.consumer_groups g ON g.group_id = j.group_id
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE j.state = 'c' AND j.lease_id = u.lease_id AND j.due_at > clock_timestamp()
    LOOP
        claim := renewing.claim;
        PERFORM penstock.append_state(
            claim, 'c', claim.committed, claim.attempt, claim.narrow_attempt, claim.narrow_to, renewing.until,
            claim.first_error, claim.last_error, held => true
        );
        renewed[renewing.position] := renewing.until;
    END LOOP;
    RETURN renewed;
END
$$;
