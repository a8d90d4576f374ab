-- penstock.lock_partitions(queue_names, partition_names, numbered)
--
-- Finds the partitions of a push, creates those that do not exist yet, and takes the locks that a push needs until
-- its transaction ends: that of each partition (in the order of ids, so that two callers never deadlock), then a
-- shared one of each queue, so that no group is created that would not see these messages.
--
-- Parameters: parallel arrays; numbered - whether messages are appended to the partition of the entry. If not, its
-- lock only keeps it from being deleted, and blocks nobody else. Null: to all of them.
-- Returns: the partition id of each entry.
-- Calls: ensure_partitions, queue_lock_class. Tables: queues (read), partitions (lock).
CREATE OR REPLACE FUNCTION penstock.lock_partitions(
    queue_names text[], partition_names text[], numbered boolean[] DEFAULT NULL
)
RETURNS bigint[]
LANGUAGE plpgsql
AS $$
DECLARE
    targets bigint[];
    locked  bigint;
BEGIN
    LOOP
        targets := ARRAY(
            SELECT p.partition_id
            FROM unnest(queue_names, partition_names) WITH ORDINALITY w (queue_name, partition_name, position)
            -- LIMIT: a plain join, planned for a small table, goes through all partitions of the queue for each.
            LEFT JOIN LATERAL (
                SELECT p.partition_id
                FROM penstock.partitions p
                WHERE p.queue_id = (SELECT q.queue_id FROM penstock.queues q WHERE q.name = w.queue_name)
                  AND p.name = w.partition_name
                LIMIT 1
            ) p ON true
            ORDER BY w.position
        );
        IF array_position(targets, NULL) IS NOT NULL THEN
            PERFORM penstock.ensure_partitions(queue_names, partition_names);
            CONTINUE;
        END IF;
        IF numbered IS NULL THEN
            PERFORM 1 FROM penstock.partitions p
            WHERE p.partition_id = ANY (targets)
            ORDER BY p.partition_id
            FOR NO KEY UPDATE;
            GET DIAGNOSTICS locked = ROW_COUNT;
        ELSE
            PERFORM 1 FROM penstock.partitions p
            WHERE p.partition_id = ANY (targets)
            ORDER BY p.partition_id
            FOR KEY SHARE;
            GET DIAGNOSTICS locked = ROW_COUNT;
            PERFORM 1 FROM penstock.partitions p
            WHERE p.partition_id = ANY (ARRAY(
                SELECT u.target FROM unnest(targets, numbered) u (target, numbered) WHERE u.numbered
            ))
            ORDER BY p.partition_id
            FOR NO KEY UPDATE;
        END IF;
        -- Fewer rows than partitions: one was deleted while we waited for its lock. Look again.
        EXIT WHEN locked = (SELECT count(DISTINCT t) FROM unnest(targets) t);
    END LOOP;

    PERFORM pg_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id)
    FROM (
        SELECT DISTINCT (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = t) AS queue_id
        FROM unnest(targets) t
        ORDER BY 1
    ) q;
    RETURN targets;
END
$$;
