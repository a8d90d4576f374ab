-- penstock.has_pending_messages(queue_name, partition_name, consumer_group, lows)
--
-- Returns whether a pop could find something now. Idle consumers call it instead of popping: it takes one index probe
-- and writes nothing. True is no promise: another consumer may be faster, or a delay may not be over. It is true for
-- a group that does not exist, which has all messages to read, and false for a queue that does not exist.
--
-- Parameters: partition_name - null or '*' for any; lows - as in pop_claims.
-- Returns: whether the ready list has an entry.
-- Calls: newest_state. Tables: queues, consumer_groups, partitions, ready (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.has_pending_messages(
    queue_name text, partition_name text DEFAULT NULL, consumer_group text DEFAULT 'default', lows bigint[] DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    reader  record;
    pending boolean;
BEGIN
    -- What is asked most often is one statement, and as small as can be.
    IF lows IS NULL AND (partition_name IS NULL OR partition_name = '*') THEN
        SELECT EXISTS (SELECT 1 FROM penstock.ready y WHERE y.group_id = g.group_id) INTO pending
        FROM penstock.consumer_groups g
        WHERE g.queue_id = (SELECT q.queue_id FROM penstock.queues q WHERE q.name = queue_name)
          AND g.name = consumer_group;
        RETURN coalesce(pending, EXISTS (SELECT 1 FROM penstock.queues q WHERE q.name = queue_name));
    END IF;
    SELECT g.group_id, q.queue_id, q.priorities INTO reader
    FROM penstock.queues q
    JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
    WHERE q.name = queue_name AND g.name = consumer_group;
    IF NOT FOUND THEN
        RETURN EXISTS (SELECT 1 FROM penstock.queues q WHERE q.name = queue_name);
    END IF;
    IF partition_name IS NULL OR partition_name = '*' THEN
        RETURN EXISTS (
            SELECT 1
            FROM unnest(reader.priorities, lows) l (level, low)
            CROSS JOIN LATERAL (
                SELECT 1 FROM penstock.ready y
                WHERE y.group_id = reader.group_id AND y.priority = l.level AND y.seq >= coalesce(l.low, 0)
                LIMIT 1
            ) y
        );
    END IF;
    RETURN EXISTS (
        SELECT 1
        FROM penstock.partitions p
        CROSS JOIN LATERAL penstock.newest_state(reader.group_id, p.partition_id) j
        WHERE p.queue_id = reader.queue_id AND p.name = partition_name
          AND (j.state = 'r' OR EXISTS (
              -- Ranges of a shared group, beside the frontier.
              SELECT 1 FROM penstock.ready y
              WHERE y.group_id = reader.group_id AND y.partition_id = p.partition_id AND y.lo IS NOT NULL
          ))
    );
END
$$;
