-- penstock.delete_partitions(targets)
--
-- Deletes partitions with all their rows in other tables; no other function knows which those are. Dead letters stay:
-- they have copies of their messages and are deleted with their queue.
--
-- Parameters: targets - partition ids.
-- Returns: the number of messages deleted.
-- Calls: partition_span, forget_pushes, delete_positions. Tables: partitions (lock, delete), segments, trimmed,
-- late_wakeups, archived (delete), deleted_partitions (insert), consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.delete_partitions(targets bigint[])
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    messages bigint;
BEGIN
    PERFORM 1 FROM penstock.partitions p WHERE p.partition_id = ANY (targets) ORDER BY p.partition_id FOR UPDATE;
    SELECT coalesce(sum(s.head_offset - s.floor_offset), 0) INTO messages
    FROM unnest(targets) t (partition_id)
    CROSS JOIN LATERAL penstock.partition_span(t.partition_id) s;
    -- For readers with positions of their own, which must know whether they had read the partition to the end.
    INSERT INTO penstock.deleted_partitions (partition_id, head_offset)
    SELECT t.partition_id, s.head_offset
    FROM unnest(targets) t (partition_id)
    JOIN penstock.partitions p ON p.partition_id = t.partition_id
    CROSS JOIN LATERAL penstock.partition_span(t.partition_id) s
    WHERE EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.queue_id = p.queue_id AND g.mode = 'external'
    );
    DELETE FROM penstock.segments s WHERE s.partition_id = ANY (targets);
    DELETE FROM penstock.trimmed t WHERE t.partition_id = ANY (targets);
    DELETE FROM penstock.late_wakeups w WHERE w.partition_id = ANY (targets);
    -- The files stay where they are; they are somebody's copy.
    DELETE FROM penstock.archived a WHERE a.partition_id = ANY (targets);
    PERFORM penstock.forget_pushes(targets);
    PERFORM penstock.delete_positions(
        ARRAY(
            SELECT g.group_id FROM penstock.consumer_groups g
            WHERE g.queue_id IN (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = ANY (targets))
        ),
        targets
    );
    DELETE FROM penstock.partitions p WHERE p.partition_id = ANY (targets);
    RETURN messages;
END
$$;
