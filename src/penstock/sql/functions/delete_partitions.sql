-- penstock.delete_partitions(targets)
--
-- Deletes partitions with all that belongs to them. The one place that knows what belongs to a partition. Dead
-- letters stay: they hold copies of their own, and go with their queue.
--
-- Parameters: targets - partition ids.
-- Returns: how many messages went with them.
-- Calls: partition_span. Tables: partitions (lock, delete), segments, journal, ready, claims,
-- doorbells (delete).
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
    DELETE FROM penstock.segments s WHERE s.partition_id = ANY (targets);
    DELETE FROM penstock.doorbells d WHERE d.partition_id = ANY (targets);
    -- The line has no index by partition, and the newest journal row knows the place.
    DELETE FROM penstock.ready y
    USING penstock.journal j, penstock.consumer_groups g, penstock.queues q
    WHERE q.queue_id IN (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = ANY (targets))
      AND g.queue_id = q.queue_id AND j.group_id = g.group_id AND j.partition_id = ANY (targets)
      AND y.group_id = j.group_id AND y.priority = ANY (q.priorities) AND y.seq = j.ready_seq;
    DELETE FROM penstock.ready y
    USING penstock.partitions p, penstock.consumer_groups g
    WHERE p.partition_id = ANY (targets) AND g.queue_id = p.queue_id
      AND y.group_id = g.group_id AND y.partition_id = p.partition_id AND y.lo IS NOT NULL;
    DELETE FROM penstock.claims c
    USING penstock.partitions p, penstock.consumer_groups g
    WHERE p.partition_id = ANY (targets) AND g.queue_id = p.queue_id
      AND c.group_id = g.group_id AND c.partition_id = p.partition_id;
    DELETE FROM penstock.journal j
    USING penstock.partitions p, penstock.consumer_groups g
    WHERE p.partition_id = ANY (targets) AND g.queue_id = p.queue_id
      AND j.group_id = g.group_id AND j.partition_id = p.partition_id;
    DELETE FROM penstock.partitions p WHERE p.partition_id = ANY (targets);
    RETURN messages;
END
$$;
