-- penstock.publish_segments(stage_ids)
--
-- Gives staged segments their partitions and offsets. The caller holds the locks of the stages and removes them. The
-- work is per segment, and the payload is not touched.
--
-- Parameters: stage_ids - in the order in which their messages shall lie.
-- Returns: how many segments and messages there were.
-- Calls: ensure_partitions, wake_partitions, queue_lock_class. Tables: staged (read), partitions (lock), segments
-- (update).
CREATE OR REPLACE FUNCTION penstock.publish_segments(stage_ids bigint[], OUT segments bigint, OUT messages bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    queues   text[];
    names    text[];
    targets  bigint[];
    locked   bigint;
    now_here timestamptz;
    heads    bigint[];
BEGIN
    SELECT array_agg(d.queue_name), array_agg(d.partition_name) INTO queues, names
    FROM (
        SELECT DISTINCT u.queue_name, u.partition_name
        FROM penstock.staged s
        CROSS JOIN LATERAL unnest(s.queue_names, s.partition_names) u (queue_name, partition_name)
        WHERE s.stage_id = ANY (stage_ids)
    ) d;
    segments := 0;
    messages := 0;
    IF queues IS NULL THEN
        RETURN;
    END IF;
    LOOP
        targets := ARRAY(
            SELECT p.partition_id
            FROM unnest(queues, names) WITH ORDINALITY w (queue_name, partition_name, position)
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
            PERFORM penstock.ensure_partitions(queues, names);
            CONTINUE;
        END IF;
        PERFORM 1 FROM penstock.partitions p
        WHERE p.partition_id = ANY (targets)
        ORDER BY p.partition_id
        FOR NO KEY UPDATE;
        GET DIAGNOSTICS locked = ROW_COUNT;
        -- Fewer rows than partitions: one was deleted while we waited for its lock. It begins anew.
        EXIT WHEN locked = cardinality(targets);
    END LOOP;
    -- Keeps a group from coming into being until we have committed: it would not know of these messages.
    PERFORM pg_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id)
    FROM (
        SELECT DISTINCT (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = t) AS queue_id
        FROM unnest(targets) t
        ORDER BY 1
    ) q;

    -- A new statement, hence a new snapshot: under the locks it sees every segment there is.
    now_here := clock_timestamp();
    WITH places AS MATERIALIZED (
        SELECT w.queue_name, w.partition_name, w.target, coalesce(newest.head, 0) AS head, newest.created_at
        FROM unnest(queues, names, targets) w (queue_name, partition_name, target)
        LEFT JOIN LATERAL (
            SELECT g.base_offset + g.count AS head, g.created_at
            FROM penstock.segments g
            WHERE g.partition_id = w.target
            ORDER BY g.base_offset DESC
            LIMIT 1
        ) newest ON true
    ), numbered AS MATERIALIZED (
        SELECT
            w.stage_id, s.first_ordinal + u.position - 1 AS ordinal, h.target, u.count, h.head, h.created_at,
            h.head + sum(u.count) OVER (
                PARTITION BY h.target ORDER BY w.position, s.first_ordinal, u.position
            ) - u.count AS base_offset
        FROM unnest(stage_ids) WITH ORDINALITY w (stage_id, position)
        JOIN penstock.staged s ON s.stage_id = w.stage_id
        CROSS JOIN LATERAL unnest(s.queue_names, s.partition_names, s.counts)
            WITH ORDINALITY u (queue_name, partition_name, count, position)
        JOIN places h ON h.queue_name = u.queue_name AND h.partition_name = u.partition_name
    ), moved AS (
        UPDATE penstock.segments g
        SET partition_id = n.target, base_offset = n.base_offset, created_at = greatest(now_here, n.created_at)
        FROM numbered n
        WHERE g.partition_id = -n.stage_id AND g.base_offset = n.ordinal
        RETURNING g.count
    )
    SELECT
        (SELECT count(*) FROM moved), (SELECT sum(m.count) FROM moved m),
        (SELECT array_agg(h.target) FROM places h), (SELECT array_agg(h.head) FROM places h)
    INTO segments, messages, targets, heads;
    PERFORM penstock.wake_partitions(targets, heads);
END
$$;
