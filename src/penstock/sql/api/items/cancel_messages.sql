-- penstock.cancel_messages(message_ids, group_name)
--
-- Cancels messages for the groups that are not done with them. One that waits is never handed out: pops pass it, and it
-- counts as done. Of one that is in flight its worker is told (list_cancelled), and it is not delivered again. Nothing
-- else of its batch or partition changes.
--
-- Parameters: message_ids; group_name - null for all groups of the messages' queues.
-- Returns: the ids for which it was in time: some group was not done with them.
-- Calls: use_lock_timeout, message_address, partition_span, item_state, newest_state, heed_cancelled,
-- refresh_gate. Tables: consumer_groups, partitions
-- (lock), cancellations (insert, update), journal (update), claims (delete).
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.cancel_messages(message_ids uuid[], group_name text DEFAULT NULL)
RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    cancelling record;
    cancelled  uuid[] := '{}';
    reader     integer;
    readers    integer[] := '{}';
BEGIN
    PERFORM penstock.use_lock_timeout();
    -- Against whoever deletes the partitions or groups: a cancellation that was inserted meanwhile would stay for ever.
    -- Partitions first, as in delete_queue.
    PERFORM 1 FROM penstock.partitions p
    WHERE p.partition_id = ANY (ARRAY(
        SELECT a.partition_id FROM unnest(message_ids) u (id) CROSS JOIN LATERAL penstock.message_address(u.id) a
    ))
    ORDER BY p.partition_id
    FOR KEY SHARE;
    PERFORM 1 FROM penstock.consumer_groups g
    WHERE g.queue_id = ANY (ARRAY(
        SELECT p.queue_id
        FROM unnest(message_ids) u (id)
        CROSS JOIN LATERAL penstock.message_address(u.id) a
        JOIN penstock.partitions p ON p.partition_id = a.partition_id
    )) AND (cancel_messages.group_name IS NULL OR g.name = cancel_messages.group_name)
    ORDER BY g.group_id
    FOR KEY SHARE;
    -- A new statement, hence a new snapshot: it sees what they have deleted.
    FOR cancelling IN
        SELECT a.id, a.partition_id, a.message_offset, g.group_id, i.state
        FROM (
            SELECT DISTINCT u.id, a.partition_id, a.message_offset
            FROM unnest(message_ids) u (id)
            CROSS JOIN LATERAL penstock.message_address(u.id) a
        ) a
        JOIN penstock.partitions p ON p.partition_id = a.partition_id
        CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
        JOIN penstock.consumer_groups g ON g.queue_id = p.queue_id AND g.mode <> 'external'
            AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
            AND (cancel_messages.group_name IS NULL OR g.name = cancel_messages.group_name)
        CROSS JOIN LATERAL penstock.item_state(g.group_id, p.partition_id, a.message_offset) i
        WHERE a.message_offset < s.head_offset AND a.message_offset >= s.floor_offset AND i.state <> 'done'
        -- All callers insert in the same order, so none waits for another in a circle.
        ORDER BY g.group_id, a.partition_id, a.message_offset
    LOOP
        INSERT INTO penstock.cancellations (group_id, partition_id, message_offset)
        VALUES (cancelling.group_id, cancelling.partition_id, cancelling.message_offset)
        ON CONFLICT ON CONSTRAINT cancellations_pkey DO UPDATE SET passed = false, heeded = false;
        cancelled := cancelled || cancelling.id;
        readers := readers || cancelling.group_id;
        -- Nobody has to wait for it any more.
        IF cancelling.state IN ('delayed', 'retrying') THEN
            UPDATE penstock.journal j
            SET due_at = clock_timestamp()
            WHERE j.ctid = ANY (ARRAY(
                SELECT w.ctid
                FROM (
                    SELECT n.version, n.state, n.committed
                    FROM penstock.newest_state(cancelling.group_id, cancelling.partition_id) n
                ) n
                JOIN penstock.journal w ON w.group_id = cancelling.group_id AND w.partition_id = cancelling.partition_id
                    AND w.version = n.version
                WHERE n.state = 't' AND n.committed = cancelling.message_offset AND w.due_at > clock_timestamp()
                FOR UPDATE OF w SKIP LOCKED
            ));
            DELETE FROM penstock.claims c
            WHERE c.ctid = ANY (ARRAY(
                SELECT w.ctid FROM penstock.claims w
                WHERE w.group_id = cancelling.group_id AND w.partition_id = cancelling.partition_id
                  AND w.lo = cancelling.message_offset AND w.hi = w.lo + 1 AND w.lease_id IS NULL
                FOR UPDATE SKIP LOCKED
            ));
            IF FOUND THEN
                PERFORM penstock.heed_cancelled(
                    cancelling.group_id, cancelling.partition_id, cancelling.message_offset, cancelling.message_offset + 1
                );
            END IF;
        END IF;
    END LOOP;
    FOR reader IN SELECT DISTINCT r FROM unnest(readers) r ORDER BY r LOOP
        PERFORM penstock.refresh_gate(reader);
    END LOOP;
    RETURN ARRAY(SELECT u.id FROM unnest(message_ids) WITH ORDINALITY u (id, n) WHERE u.id = ANY (cancelled) ORDER BY u.n);
END
$$;
