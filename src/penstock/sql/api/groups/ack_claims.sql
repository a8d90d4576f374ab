-- penstock.ack_claims(group_ids, partition_ids, lease_ids, starts, stops, durable)
--
-- Acknowledges any number of claims, of groups of either mode. A claim of which nothing is left ends; the rest of any other
-- stays under its lease. A lease that has expired or is not the claim's own changes nothing.
--
-- Parameters: parallel arrays, one entry per range that is done; starts - its first offset, null for the beginning of the
-- claim; stops - the offset after its last, null for the end of the claim. In an ordered group all below `stop` is
-- done, and `start` is ignored. durable - false commits the caller's transaction without waiting for the disk, where
-- `durable_acks` is false for all of the groups. Only for a caller who does nothing else in it.
-- Returns: for each entry, in the order given, whether it was acknowledged.
-- Calls: require_read_committed, use_lock_timeout, ack_ordered, ack_shared. Tables: queues, consumer_groups, partitions,
-- segments (read), journal (lock, insert), ready (insert), claims (delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.ack_claims(
    group_ids     integer[],
    partition_ids bigint[],
    lease_ids     uuid[],
    starts        bigint[] DEFAULT NULL,
    stops         bigint[] DEFAULT NULL,
    durable       boolean  DEFAULT true
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
    reader  integer;
    target  bigint;
    lease   uuid;
    held    penstock.journal;
    seen    record;
    place   bigint;
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
    -- One claim, and all of it: what most calls are about. Each statement here costs as much as the insert of a row, so it is
    -- written out; ack_ordered and ack_shared, which it agrees with, do all else.
    IF cardinality(group_ids) = 1 THEN
        reader := group_ids[1];
        target := partition_ids[1];
        lease := lease_ids[1];
        SELECT
            g.mode = 'shared' AS shared,
            NOT durable AND coalesce(g.config -> 'durable_acks', q.settings -> 'durable_acks') = 'false' AS relaxed
        INTO seen
        FROM penstock.consumer_groups g
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE g.group_id = reader;
        IF seen.relaxed THEN
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
        IF seen.shared THEN
            IF starts[1] IS NULL AND stops[1] IS NULL THEN
                DELETE FROM penstock.claims c
                WHERE c.group_id = reader AND c.partition_id = target AND c.lease_id = lease
                  AND c.due_at > clock_timestamp();
                -- A new statement, hence a new snapshot: whoever held a row before us may have left others in its place.
                IF FOUND AND NOT EXISTS (
                    SELECT 1 FROM penstock.claims c
                    WHERE c.group_id = reader AND c.partition_id = target AND c.lease_id = lease
                ) THEN
                    RETURN ARRAY[true];
                END IF;
            END IF;
            RETURN penstock.ack_shared(group_ids, partition_ids, lease_ids, starts, stops);
        END IF;
        SELECT j.* INTO held FROM penstock.journal j
        WHERE j.group_id = reader AND j.partition_id = target
        ORDER BY j.version DESC
        LIMIT 1
        FOR UPDATE;
        -- A new statement, hence a new snapshot: whoever held the lock before us may have ended the claim.
        SELECT
            p.priority,
            (
                SELECT j.version FROM penstock.journal j
                WHERE j.group_id = reader AND j.partition_id = target
                ORDER BY j.version DESC
                LIMIT 1
            ) AS version,
            (
                SELECT s.base_offset + s.count FROM penstock.segments s
                WHERE s.partition_id = target
                ORDER BY s.base_offset DESC
                LIMIT 1
            ) AS head_offset
        INTO seen
        FROM penstock.partitions p WHERE p.partition_id = target;
        IF held.version = seen.version AND held.state = 'c' AND held.lease_id = lease
            AND held.due_at > clock_timestamp() AND coalesce(held.narrow_to, 0) <= held.claimed_to
            AND coalesce(stops[1], held.claimed_to) = held.claimed_to
        THEN
            -- With nothing left the ready list entry would only lead to an empty look: park it at once.
            place := CASE WHEN seen.head_offset > held.claimed_to THEN nextval('penstock.ready_seq') END;
            INSERT INTO penstock.journal (
                group_id, partition_id, version, state, committed, claimed_to, skipped, ready_seq, due_at, acked_at
            ) VALUES (
                held.group_id, held.partition_id, held.version + 1, CASE WHEN place IS NOT NULL THEN 'r' ELSE 'p' END,
                held.claimed_to, held.claimed_to, held.skipped, place,
                CASE WHEN place IS NULL THEN clock_timestamp() + interval '50 milliseconds' END, clock_timestamp()
            );
            IF place IS NOT NULL THEN
                INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
                VALUES (held.group_id, seen.priority, place, held.partition_id);
            END IF;
            RETURN ARRAY[true];
        END IF;
        RETURN penstock.ack_ordered(group_ids, partition_ids, lease_ids, stops);
    END IF;
    IF NOT durable AND NOT EXISTS (
        SELECT 1
        FROM penstock.consumer_groups g
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE g.group_id = ANY (group_ids)
          AND coalesce(g.config -> 'durable_acks', q.settings -> 'durable_acks') IS DISTINCT FROM 'false'
    ) THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF NOT EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = ANY (group_ids) AND g.mode = 'shared'
    ) THEN
        RETURN penstock.ack_ordered(group_ids, partition_ids, lease_ids, stops);
    END IF;
    IF NOT EXISTS (
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
