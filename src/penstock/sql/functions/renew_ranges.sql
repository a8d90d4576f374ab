-- penstock.renew_ranges(group_ids, partition_ids, lease_ids, lease_time)
--
-- Gives claims of shared groups a new deadline: renew_claims for shared groups.
--
-- Parameters: as in renew_claims.
-- Returns: for each claim, in the order given, its new deadline, or null where it was not renewed.
-- Calls: require_read_committed, use_lock_timeout, lock_leases. Tables: queues, consumer_groups (read), claims (update).
CREATE OR REPLACE FUNCTION penstock.renew_ranges(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], lease_time float8 DEFAULT NULL
)
RETURNS timestamptz[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    renewed timestamptz[];
BEGIN
    IF lease_time <= 0 OR lease_time > 604800 THEN
        RAISE EXCEPTION 'lease_time is % but must be above 0 and at most 604800 seconds', lease_time
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_read_committed('renew');
    PERFORM penstock.use_lock_timeout();
    PERFORM penstock.lock_leases(group_ids, partition_ids, lease_ids);
    WITH renewing AS (
        UPDATE penstock.claims c
        SET due_at = clock_timestamp() + make_interval(
            secs => coalesce(lease_time, (g.config ->> 'lease_time')::float8, (q.settings ->> 'lease_time')::float8)
        )
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
