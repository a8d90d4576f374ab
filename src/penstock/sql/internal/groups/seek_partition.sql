-- penstock.seek_partition(seeking, target, to_offset, to_time, to_end, preview)
--
-- Moves a group to another position in one partition. To be allowed to append in any state, it takes the partition's
-- lock, the lock of the newest journal row, and the ready list entry; it waits for none of them.
--
-- Parameters: those of seek_partitions.
-- Returns: 'moved', 'there' or 'busy', the positions, and whether a claim lost its lease.
-- Calls: partition_span, offset_at, item_state, forget_items, free_slots, append_state, trim_journal, newest_state. Tables:
-- partitions, journal (lock), ready, claims (lock, delete), cancellations (delete), consumer_groups, queues, item_notes (read).
CREATE OR REPLACE FUNCTION penstock.seek_partition(
    seeking integer, target bigint, to_offset bigint, to_time timestamptz, to_end text, preview boolean,
    OUT outcome text, OUT was_at bigint, OUT now_at bigint, OUT revoked boolean
)
LANGUAGE plpgsql
AS $$
DECLARE
    before penstock.journal;
    locked bigint;
    span   record;
BEGIN
    IF NOT preview THEN
        outcome := 'busy';
        PERFORM 1 FROM penstock.partitions p WHERE p.partition_id = target FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        -- SKIP LOCKED would go on to an older row: lock the newest or nothing.
        SELECT j.* INTO before FROM penstock.newest_state(seeking, target) j;
        IF FOUND THEN
            PERFORM 1 FROM penstock.journal j
            WHERE j.group_id = seeking AND j.partition_id = target AND j.version = before.version
            FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN;
            END IF;
        END IF;
        locked := before.version;
    END IF;
    SELECT j.* INTO before FROM penstock.newest_state(seeking, target) j;
    IF NOT preview AND before.version IS DISTINCT FROM locked THEN
        RETURN; -- somebody popped it or settled it before we had the lock
    END IF;
    SELECT s.* INTO span FROM penstock.partition_span(target) s;
    was_at := coalesce(least(
        before.committed,
        (SELECT min(c.lo) FROM penstock.claims c WHERE c.group_id = seeking AND c.partition_id = target),
        (SELECT min(y.lo) FROM penstock.ready y
         WHERE y.group_id = seeking AND y.partition_id = target AND y.lo IS NOT NULL)
    ), CASE
        WHEN (SELECT g.subscription FROM penstock.consumer_groups g WHERE g.group_id = seeking) = 'new'
        THEN span.head_offset ELSE span.floor_offset
    END);
    now_at := CASE
        WHEN to_end = 'earliest' THEN span.floor_offset
        WHEN to_end = 'latest' THEN span.head_offset
        WHEN to_time IS NOT NULL THEN penstock.offset_at(target, to_time)
        ELSE least(greatest(to_offset, span.floor_offset), span.head_offset)
    END;
    revoked := coalesce(before.state = 'c', false) OR EXISTS (
        SELECT 1 FROM penstock.claims c
        WHERE c.group_id = seeking AND c.partition_id = target AND c.lease_id IS NOT NULL
    );
    -- What a shared group handed out beyond there and is done would not come again by itself.
    IF now_at = was_at AND coalesce(before.committed, was_at) = was_at AND NOT revoked THEN
        outcome := 'there';
        RETURN;
    END IF;
    outcome := 'moved';
    IF preview THEN
        RETURN;
    END IF;
    -- A shared group moves as a whole: what was handed out and is not done moves with it.
    locked := (SELECT count(*) FROM (
        SELECT 1 FROM penstock.claims c
        WHERE c.group_id = seeking AND c.partition_id = target
        FOR UPDATE SKIP LOCKED
    ) c) + (SELECT count(*) FROM (
        SELECT 1 FROM penstock.ready y
        WHERE y.group_id = seeking AND y.partition_id = target AND y.lo IS NOT NULL
        FOR UPDATE SKIP LOCKED
    ) y);
    IF locked < (SELECT count(*) FROM penstock.claims c WHERE c.group_id = seeking AND c.partition_id = target) + (
        SELECT count(*) FROM penstock.ready y
        WHERE y.group_id = seeking AND y.partition_id = target AND y.lo IS NOT NULL
    ) THEN
        outcome := 'busy'; -- somebody is popping or settling a range
        RETURN;
    END IF;
    IF before.state = 'r' THEN
        DELETE FROM penstock.ready y
        WHERE y.ctid = (
            SELECT y.ctid FROM penstock.ready y
            WHERE y.group_id = seeking AND y.seq = before.ready_seq AND y.priority = ANY ((
                SELECT q.priorities FROM penstock.queues q
                JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
                WHERE g.group_id = seeking
            )::smallint[])
            FOR UPDATE SKIP LOCKED
        );
        IF NOT FOUND THEN
            outcome := 'busy'; -- somebody is popping it
            RETURN;
        END IF;
    END IF;
    -- What is done and comes again begins anew. Notes of what is not done are for its next attempt, as ever.
    PERFORM penstock.forget_items(array_agg(n.group_id), array_agg(n.partition_id), array_agg(n.message_offset))
    FROM penstock.item_notes n
    CROSS JOIN LATERAL penstock.item_state(n.group_id, n.partition_id, n.message_offset) i
    WHERE n.group_id = seeking AND n.partition_id = target AND n.message_offset >= now_at
      AND coalesce(i.state, 'done') = 'done'
    HAVING count(*) > 0;
    PERFORM penstock.free_slots(c.lease_id)
    FROM (
        SELECT DISTINCT c.lease_id FROM penstock.claims c
        WHERE c.group_id = seeking AND c.partition_id = target AND c.lease_id IS NOT NULL
    ) c;
    DELETE FROM penstock.claims c WHERE c.group_id = seeking AND c.partition_id = target;
    DELETE FROM penstock.ready y WHERE y.group_id = seeking AND y.partition_id = target AND y.lo IS NOT NULL;
    -- What was cancelled comes again, if the group goes back to it.
    DELETE FROM penstock.cancellations c WHERE c.group_id = seeking AND c.partition_id = target;
    IF before.version IS NULL THEN
        before.group_id := seeking;
        before.partition_id := target;
        before.version := 0;
        before.skipped := 0;
    END IF;
    PERFORM penstock.append_state(
        before, CASE WHEN span.head_offset > now_at THEN 'r' ELSE 'i' END::"char", now_at
    );
    PERFORM penstock.trim_journal(seeking, target, before.version);
END
$$;
