-- penstock.renew_claims(group_ids, partition_ids, lease_ids, lease_time, durable, begun)
--
-- Extends the leases of any number of claims, of groups of either mode, counted from now. If a lease has expired or
-- is not the claim's own, nothing changes.
--
-- Parameters: parallel arrays, one entry per claim; lease_time - seconds, null for the group's or the queue's;
-- durable - false commits the caller's transaction without waiting for the disk, as in pop_claims;
-- begun - the consumer begins now with what it has claimed ahead, so that the delivery counts if the lease ends.
-- Returns: for each claim, in the order given, its new deadline, or null where it was not renewed.
-- Calls: require_read_committed, use_lock_timeout, renew_ordered, renew_shared. Tables: consumer_groups (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.renew_claims(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], lease_time float8 DEFAULT NULL,
    durable boolean DEFAULT true, begun boolean DEFAULT false
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
    part    record;
    answers timestamptz[];
    renewed timestamptz[];
BEGIN
    IF lease_time <= 0 OR lease_time > 604800 THEN
        RAISE EXCEPTION 'lease_time is % but must be above 0 and at most 604800 seconds', lease_time
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF begun IS NULL THEN
        RAISE EXCEPTION 'begun is null but must be true or false' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM penstock.require_read_committed('renew');
    END IF;
    IF current_setting('penstock.lock_timeout', true) <> '' THEN
        PERFORM penstock.use_lock_timeout();
    END IF;
    IF NOT durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF NOT EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = ANY (group_ids) AND g.mode = 'shared'
    ) THEN
        RETURN penstock.renew_ordered(group_ids, partition_ids, lease_ids, lease_time, begun);
    END IF;
    IF cardinality(group_ids) = 1 OR NOT EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = ANY (group_ids) AND g.mode <> 'shared'
    ) THEN
        RETURN penstock.renew_shared(group_ids, partition_ids, lease_ids, lease_time, begun);
    END IF;
    -- Ordered groups first: all callers take the locks in the same order.
    FOR part IN
        SELECT
            coalesce(g.mode = 'shared', false) AS shared,
            array_agg(u.position ORDER BY u.position) AS positions,
            array_agg(u.group_id ORDER BY u.position) AS group_ids,
            array_agg(u.partition_id ORDER BY u.position) AS partition_ids,
            array_agg(u.lease_id ORDER BY u.position) AS lease_ids
        FROM unnest(group_ids, partition_ids, lease_ids) WITH ORDINALITY u (group_id, partition_id, lease_id, position)
        LEFT JOIN penstock.consumer_groups g ON g.group_id = u.group_id
        GROUP BY 1
        ORDER BY 1
    LOOP
        IF part.shared THEN
            answers := penstock.renew_shared(part.group_ids, part.partition_ids, part.lease_ids, lease_time, begun);
        ELSE
            answers := penstock.renew_ordered(part.group_ids, part.partition_ids, part.lease_ids, lease_time, begun);
        END IF;
        FOR i IN 1 .. cardinality(answers) LOOP
            renewed[part.positions[i]] := answers[i];
        END LOOP;
    END LOOP;
    RETURN renewed;
END
$$;
