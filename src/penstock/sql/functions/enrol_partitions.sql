-- penstock.enrol_partitions(target_group, max_partitions, alone)
--
-- Takes up partitions that were there before a group: puts those with messages for it in line, oldest first. A
-- partition that somebody is pushing to is passed over (that push sees the group and puts it in line itself, unless it
-- rolls back); then another round follows the last one, until none was passed over.
--
-- Parameters: target_group; max_partitions - how many to visit; alone - whether the caller holds the queue's lock, so
-- that nobody can be appending: then only a partition that is being deleted is passed over.
-- Returns: how many were put in line.
-- Calls: wake_partitions, partition_span, offset_at. Tables: consumer_groups (update), partitions (lock), journal (read).
CREATE OR REPLACE FUNCTION penstock.enrol_partitions(
    target_group integer, max_partitions integer, alone boolean DEFAULT false
)
RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    enrolling record;
    visited   bigint[];
    locked    bigint[];
    waking    bigint[];
BEGIN
    SELECT g.queue_id, g.enrolled_to, g.subscription, g.from_time, g.enrol_again INTO enrolling
    FROM penstock.consumer_groups g
    WHERE g.group_id = target_group AND g.enrolled_to IS NOT NULL
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    visited := ARRAY(
        SELECT p.partition_id FROM penstock.partitions p
        WHERE p.queue_id = enrolling.queue_id AND p.partition_id > enrolling.enrolled_to AND p.lane_of IS NULL
        ORDER BY p.partition_id
        LIMIT max_partitions
    );
    IF alone THEN
        -- A sweep may hold some for another group; the first pop of this one shall not come away empty for that.
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
          AND (enrolling.subscription <> 'time' OR s.newest_at >= enrolling.from_time)
          AND NOT EXISTS (
              SELECT 1 FROM penstock.journal j
              WHERE j.group_id = target_group AND j.partition_id = l.partition_id
          )
        ORDER BY l.partition_id
    );
    PERFORM penstock.wake_partitions(waking, NULL, target_group);
    UPDATE penstock.consumer_groups g
    SET enrolled_to = CASE
            WHEN cardinality(visited) = max_partitions THEN visited[max_partitions]
            WHEN enrolling.enrol_again OR cardinality(locked) < cardinality(visited) THEN 0
        END,
        enrol_again = cardinality(visited) = max_partitions
            AND (enrolling.enrol_again OR cardinality(locked) < cardinality(visited))
    WHERE g.group_id = target_group;
    RETURN cardinality(waking);
END
$$;
