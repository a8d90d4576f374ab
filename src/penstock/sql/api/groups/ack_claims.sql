-- penstock.ack_claims(group_ids, partition_ids, lease_ids, starts, stops)
--
-- Acknowledges any number of claims, of groups of either mode. A claim of which nothing is left ends; the rest of any other
-- stays under its lease. A lease that has expired or is not the claim's own changes nothing.
--
-- Parameters: parallel arrays, one entry per range that is done; starts - its first offset, null for the beginning of the
-- claim; stops - the offset after its last, null for the end of the claim. In an ordered group all below `stop` is
-- done, and `start` is ignored.
-- Returns: for each entry, in the order given, whether it was acknowledged.
-- Calls: require_read_committed, use_lock_timeout, ack_ordered, ack_shared. Tables: consumer_groups (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.ack_claims(
    group_ids     integer[],
    partition_ids bigint[],
    lease_ids     uuid[],
    starts        bigint[] DEFAULT NULL,
    stops         bigint[] DEFAULT NULL
)
RETURNS boolean[]
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
    answers boolean[];
    acked   boolean[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM penstock.require_read_committed('ack');
    END IF;
    IF current_setting('penstock.lock_timeout', true) <> '' THEN
        PERFORM penstock.use_lock_timeout();
    END IF;
    IF NOT EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = ANY (group_ids) AND g.mode = 'shared'
    ) THEN
        RETURN penstock.ack_ordered(group_ids, partition_ids, lease_ids, stops);
    END IF;
    IF cardinality(group_ids) = 1 OR NOT EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = ANY (group_ids) AND g.mode <> 'shared'
    ) THEN
        RETURN penstock.ack_shared(group_ids, partition_ids, lease_ids, starts, stops);
    END IF;
    -- Ordered groups first: all callers take the locks in the same order.
    FOR part IN
        SELECT
            coalesce(g.mode = 'shared', false) AS shared,
            array_agg(u.position ORDER BY u.position) AS positions,
            array_agg(u.group_id ORDER BY u.position) AS group_ids,
            array_agg(u.partition_id ORDER BY u.position) AS partition_ids,
            array_agg(u.lease_id ORDER BY u.position) AS lease_ids,
            array_agg(u.start ORDER BY u.position) AS starts,
            array_agg(u.stop ORDER BY u.position) AS stops
        FROM unnest(group_ids, partition_ids, lease_ids, starts, stops) WITH ORDINALITY
            u (group_id, partition_id, lease_id, start, stop, position)
        LEFT JOIN penstock.consumer_groups g ON g.group_id = u.group_id
        GROUP BY 1
        ORDER BY 1
    LOOP
        IF part.shared THEN
            answers := penstock.ack_shared(
                part.group_ids, part.partition_ids, part.lease_ids, part.starts, part.stops
            );
        ELSE
            answers := penstock.ack_ordered(part.group_ids, part.partition_ids, part.lease_ids, part.stops);
        END IF;
        FOR i IN 1 .. cardinality(answers) LOOP
            acked[part.positions[i]] := answers[i];
        END LOOP;
    END LOOP;
    RETURN acked;
END
$$;
