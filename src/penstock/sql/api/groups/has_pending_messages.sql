-- penstock.has_pending_messages(queue_name, partition_name, consumer_group, lows)
--
-- Returns whether a pop could find something now. Idle consumers call it instead of popping: it takes one index probe
-- and writes nothing. True is no promise: another consumer may be faster, or a delay may not be over. It is true for
-- a group that does not exist, which has all messages to read, and false for a queue that does not exist, and for a group
-- that is paused, held or at its limit.
--
-- Parameters: partition_name - null or '*' for any; lows - as in pop_claims.
-- Returns: whether the ready list has an entry.
-- Calls: gate_is_open, partition_is_ready. Tables: queues, consumer_groups, partitions, ready (read).
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
    target  bigint;
    pending boolean;
BEGIN
    -- What is asked most often is one statement, and as small as can be.
    IF lows IS NULL AND (partition_name IS NULL OR partition_name = '*') THEN
        SELECT
            EXISTS (SELECT 1 FROM penstock.ready y WHERE y.group_id = g.group_id)
            AND (NOT g.gated OR penstock.gate_is_open(g.group_id))
        INTO pending
        FROM penstock.consumer_groups g
        WHERE g.queue_id = (SELECT q.queue_id FROM penstock.queues q WHERE q.name = queue_name)
          AND g.name = consumer_group;
    ELSIF partition_name IS NULL OR partition_name = '*' THEN
        -- As that one, from where the caller has seen the list taken. Most queues have one level of priority.
        SELECT
            EXISTS (
                SELECT 1 FROM penstock.ready y
                WHERE y.group_id = g.group_id AND y.priority = q.priorities[1] AND y.seq >= coalesce(lows[1], 0)
            )
            AND (NOT g.gated OR penstock.gate_is_open(g.group_id))
        INTO pending
        FROM penstock.queues q
        -- LIMIT keeps this a look at one row. A join may read all groups.
        CROSS JOIN LATERAL (
            SELECT n.group_id, n.gated FROM penstock.consumer_groups n
            WHERE n.queue_id = q.queue_id AND n.name = consumer_group
            LIMIT 1
        ) g
        WHERE q.name = queue_name AND cardinality(q.priorities) = 1;
    END IF;
    IF pending IS NOT NULL THEN
        RETURN pending;
    END IF;
    SELECT g.group_id, g.gated, q.queue_id, q.priorities INTO reader
    FROM penstock.queues q
    JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
    WHERE q.name = queue_name AND g.name = consumer_group;
    IF NOT FOUND THEN
        RETURN EXISTS (SELECT 1 FROM penstock.queues q WHERE q.name = queue_name);
    END IF;
    IF reader.gated AND NOT penstock.gate_is_open(reader.group_id) THEN
        RETURN false;
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
    -- LIMIT: planned for a small table, a join goes through all partitions.
    target := (
        SELECT p.partition_id FROM penstock.partitions p
        WHERE p.queue_id = reader.queue_id AND p.name = partition_name
        LIMIT 1
    );
    RETURN penstock.partition_is_ready(reader.group_id, target);
END
$$;
