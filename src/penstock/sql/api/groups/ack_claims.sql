-- penstock.ack_claims(group_ids, partition_ids, lease_ids, starts, stops, durable)
--
-- Acknowledges any number of claims, of groups of either mode. A claim of which nothing is left ends; the rest of any other
-- stays under its lease. In an ordered group the partition of a claim that ends joins the end of the ready list. A lease
-- that has expired or is not the claim's own changes nothing.
--
-- Parameters: parallel arrays, one entry per range that is done; starts - its first offset, null for the beginning of the
-- claim; stops - the offset after its last, null for the end of the claim. In an ordered group all below `stop` is
-- done, and `start` is ignored. durable - false commits the caller's transaction without waiting for the disk, where
-- `durable_acks` is false for all of the groups. Only for a caller who does nothing else in it.
-- Returns: for each entry, in the order given, whether it was acknowledged.
-- Calls: require_read_committed, use_lock_timeout, end_claim, free_slots, ack_shared, ack_mixed, lock_newest, newest_state, newest_segment.
-- Tables: queues, consumer_groups, partitions (read), journal (lock, insert, delete), ready (insert), claims (delete).
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
    reader   integer;
    target   bigint;
    lease    uuid;
    shared   boolean;
    all_shared boolean;
    gated    boolean;
    relaxed  boolean;
    trimming boolean;
    acked    boolean[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM penstock.require_read_committed('ack');
    END IF;
    IF current_setting('penstock.lock_timeout', true) <> '' THEN
        PERFORM penstock.use_lock_timeout();
    END IF;
    -- One claim, and all of it: what most calls are about. What follows and ack_shared, which it agrees with, do all else.
    IF cardinality(group_ids) = 1 THEN
        reader := group_ids[1];
        target := partition_ids[1];
        lease := lease_ids[1];
        SELECT
            g.mode = 'shared', g.gated,
            NOT durable AND coalesce(g.config -> 'durable_acks', (
                SELECT q.settings -> 'durable_acks' FROM penstock.queues q WHERE q.queue_id = g.queue_id
            )) = 'false'
        INTO shared, gated, relaxed
        FROM penstock.consumer_groups g
        WHERE g.group_id = reader;
        IF relaxed THEN
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
        IF shared THEN
            IF starts[1] IS NULL AND stops[1] IS NULL THEN
                DELETE FROM penstock.claims c
                WHERE c.group_id = reader AND c.partition_id = target AND c.lease_id = lease AND c.whole
                  AND c.due_at > clock_timestamp();
                IF FOUND THEN
                    IF gated THEN
                        PERFORM penstock.free_slots(lease);
                    END IF;
                    RETURN ARRAY[true];
                END IF;
            END IF;
            RETURN penstock.ack_shared(group_ids, partition_ids, lease_ids, starts, stops);
        END IF;
        IF penstock.end_claim(reader, target, lease, stops[1]) THEN
            IF gated THEN
                PERFORM penstock.free_slots(lease);
            END IF;
            RETURN ARRAY[true];
        END IF;
    ELSIF NOT durable AND NOT EXISTS (
        SELECT 1
        FROM penstock.consumer_groups g
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE g.group_id = ANY (group_ids)
          AND coalesce(g.config -> 'durable_acks', q.settings -> 'durable_acks') IS DISTINCT FROM 'false'
    ) THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    SELECT bool_or(g.mode = 'shared'), bool_and(g.mode = 'shared'), bool_or(g.gated) INTO shared, all_shared, gated
    FROM penstock.consumer_groups g
    WHERE g.group_id = ANY (group_ids);
    IF all_shared THEN
        RETURN penstock.ack_shared(group_ids, partition_ids, lease_ids, starts, stops);
    ELSIF shared THEN
        RETURN penstock.ack_mixed(group_ids, partition_ids, lease_ids, starts, stops);
    END IF;
    -- Not in a function of its own, as ack_shared is: this is the hot path, and a call costs some microseconds.
    PERFORM penstock.lock_newest(group_ids, partition_ids);
    -- A new statement, hence a new snapshot: whoever held the lock before us may have ended the claim.
    WITH ending AS MATERIALIZED (
        SELECT
            u.position, p.priority, s.head_offset, j.*,
            coalesce(u.stop, j.claimed_to) AS done_to,
            coalesce(u.stop, j.claimed_to) = j.claimed_to AS whole,
            -- With nothing left the ready list entry would only lead to an empty look: park it at once.
            CASE WHEN coalesce(u.stop, j.claimed_to) < j.claimed_to THEN 'c'
                 WHEN s.head_offset > j.claimed_to THEN 'r'
                 ELSE 'p' END AS next_state,
            nextval('penstock.ready_seq') AS seq
        FROM unnest(group_ids, partition_ids, lease_ids, stops) WITH ORDINALITY
            u (group_id, partition_id, lease_id, stop, position)
        CROSS JOIN LATERAL penstock.newest_state(u.group_id, u.partition_id) j
        JOIN penstock.partitions p ON p.partition_id = j.partition_id
        CROSS JOIN LATERAL penstock.newest_segment(j.partition_id) s
        WHERE j.state = 'c' AND j.lease_id = u.lease_id AND j.due_at > clock_timestamp()
          AND coalesce(u.stop, j.claimed_to) BETWEEN j.committed AND j.claimed_to
    ), appended AS (
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
            ready_seq, due_at, lease_id, consumer, claimed_at, acked_at, first_error, last_error
        )
        SELECT
            e.group_id, e.partition_id, e.version + 1, e.next_state::"char", e.done_to, e.claimed_to, e.skipped,
            CASE WHEN e.done_to = e.committed THEN e.attempt
                 WHEN NOT e.whole THEN e.attempt
                 WHEN e.narrow_to > e.done_to THEN e.narrow_attempt ELSE 0 END,
            CASE WHEN e.narrow_to > e.done_to THEN e.narrow_attempt ELSE 0 END,
            CASE WHEN e.narrow_to > e.done_to THEN e.narrow_to END,
            CASE WHEN e.next_state = 'r' THEN e.seq END,
            CASE e.next_state WHEN 'c' THEN e.due_at WHEN 'p' THEN clock_timestamp() + interval '50 milliseconds' END,
            CASE WHEN e.next_state = 'c' THEN e.lease_id END,
            CASE WHEN e.next_state = 'c' THEN e.consumer END,
            CASE WHEN e.next_state = 'c' THEN coalesce(e.claimed_at, e.at) END,
            clock_timestamp(),
            CASE WHEN e.done_to = e.committed THEN e.first_error END,
            CASE WHEN e.done_to = e.committed THEN e.last_error END
        FROM ending e
    ), listed AS (
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
        SELECT e.group_id, e.priority, e.seq, e.partition_id FROM ending e WHERE e.next_state = 'r'
    )
    SELECT array_agg(e.position IS NOT NULL ORDER BY n), bool_or(e.version % 32 < 2) INTO acked, trimming
    FROM generate_series(1, cardinality(lease_ids)) n
    LEFT JOIN ending e ON e.position = n;
    IF gated THEN
        PERFORM penstock.free_slots(
            u.lease_id,
            CASE WHEN j.lease_id = u.lease_id THEN int8multirange(int8range(j.committed, j.claimed_to)) ELSE '{}' END
        )
        FROM unnest(group_ids, partition_ids, lease_ids, acked) u (group_id, partition_id, lease_id, acked)
        CROSS JOIN LATERAL penstock.newest_state(u.group_id, u.partition_id) j
        WHERE u.acked;
    END IF;
    IF trimming THEN
        -- As end_claim does it.
        DELETE FROM penstock.journal j
        WHERE j.ctid = ANY (ARRAY(
            SELECT o.ctid
            FROM unnest(group_ids, partition_ids) u (group_id, partition_id)
            CROSS JOIN LATERAL penstock.newest_state(u.group_id, u.partition_id) n
            CROSS JOIN LATERAL (
                SELECT o.ctid FROM penstock.journal o
                WHERE o.group_id = n.group_id AND o.partition_id = n.partition_id
                  AND o.version BETWEEN n.version - 81 AND n.version - 17
                FOR UPDATE SKIP LOCKED
            ) o
            WHERE n.version % 32 IN (1, 2)
        ));
    END IF;
    RETURN acked;
END
$$;
