-- penstock.enrol_partitions(target_group, max_partitions, creating)
--
-- Enrols partitions in a new group: puts those with messages for it in the ready list, oldest first. A partition that
-- somebody is pushing to is skipped (that push sees the group and puts the partition in the ready list itself, unless
-- it rolls back); then another round follows, until none was skipped.
--
-- A push that does not see the group has held the shared lock of the queue since before the group was committed. The
-- transactions that hold it when the group is first seen here are awaited: the last round begins after all of them
-- have ended. Until one of them ends, there is nothing new to see.
--
-- Parameters: max_partitions - the number of partitions to visit; creating - whether this is the transaction that
-- creates the group. Then nobody else sees the group, so nobody else can enrol a partition in it.
-- Returns: the number of partitions put in the ready list.
-- Calls: wake_partitions, partition_span, queue_lock_class. Tables: consumer_groups (update), partitions (lock),
-- journal (read).
CREATE OR REPLACE FUNCTION penstock.enrol_partitions(
    target_group integer, max_partitions integer, creating boolean DEFAULT false
)
RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    enrolling  record;
    holding    text[];
    waited_for text[];
    visited    bigint[];
    locked     bigint[];
    waking     bigint[];
    passed     boolean;
BEGIN
    SELECT
        g.queue_id, g.enrolled_to, g.enrol_again, g.awaited,
        coalesce(g.from_time, CASE WHEN g.subscription = 'new' THEN g.created_at END) AS from_time
    INTO enrolling
    FROM penstock.consumer_groups g
    WHERE g.group_id = target_group AND g.enrolled_to IS NOT NULL
      AND (creating OR g.created_in IS DISTINCT FROM pg_current_xact_id_if_assigned())
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    waited_for := enrolling.awaited;
    -- When a round begins, and not within it: the last one must begin after all of them have ended.
    IF NOT creating AND enrolling.enrolled_to = 0 AND (waited_for IS NULL OR waited_for <> '{}') THEN
        holding := ARRAY(
            SELECT l.virtualtransaction FROM pg_locks l
            WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
              AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
              AND l.classid = penstock.queue_lock_class()::oid AND l.objid = enrolling.queue_id::oid
        );
        -- A transaction that was prepared meanwhile holds the lock under another id, so all prepared ones are awaited.
        waited_for := CASE WHEN enrolling.awaited IS NULL THEN holding ELSE ARRAY(
            SELECT h FROM unnest(holding) h WHERE h = ANY (enrolling.awaited) OR h LIKE '-1/%'
        ) END;
        IF waited_for <> '{}' AND waited_for = enrolling.awaited AND NOT enrolling.enrol_again THEN
            RETURN 0;
        END IF;
    END IF;
    visited := ARRAY(
        SELECT p.partition_id FROM penstock.partitions p
        WHERE p.queue_id = enrolling.queue_id AND p.partition_id > enrolling.enrolled_to AND p.lane_of IS NULL
        ORDER BY p.partition_id
        LIMIT max_partitions
    );
    IF creating THEN
        -- A sweep for another group may hold some; the first pop of this group must not be empty because of that.
        locked := ARRAY(
            SELECT p.partition_id FROM penstock.partitions p
            WHERE p.partition_id = ANY (visited)
            FOR KEY SHARE SKIP LOCKED
        );
    ELSE
        locked := ARRAY(
            SELECT p.partition_id FROM penstock.partitions p
            WHERE p.partition_id = ANY (visited)
            ORDER BY p.partition_id
            FOR NO KEY UPDATE SKIP LOCKED
        );
    END IF;
    -- In a statement of its own, so that what was pushed before the lock is seen.
    waking := ARRAY(
        SELECT l.partition_id
        FROM unnest(locked) l (partition_id)
        CROSS JOIN LATERAL penstock.partition_span(l.partition_id) s
        WHERE s.head_offset > s.floor_offset
          AND (enrolling.from_time IS NULL OR s.newest_at >= enrolling.from_time)
          AND NOT EXISTS (
              SELECT 1 FROM penstock.journal j
              WHERE j.group_id = target_group AND j.partition_id = l.partition_id
          )
        ORDER BY l.partition_id
    );
    PERFORM penstock.wake_partitions(waking, NULL, target_group);
    passed := cardinality(locked) < cardinality(visited) OR enrolling.enrol_again AND enrolling.enrolled_to > 0;
    UPDATE penstock.consumer_groups g
    SET enrolled_to = CASE
            WHEN creating THEN 0
            WHEN cardinality(visited) = max_partitions THEN visited[max_partitions]
            WHEN passed OR waited_for <> '{}' THEN 0
        END,
        enrol_again = passed,
        awaited = waited_for
    WHERE g.group_id = target_group;
    RETURN cardinality(waking);
END
$$;
