-- penstock.ensure_partitions(queue_names, partition_names)
--
-- Creates the queues and partitions of a push that do not exist yet, in sorted order, so that two callers who create
-- the same ones wait for each other and never deadlock.
--
-- Parameters: parallel arrays; pairs may repeat.
-- Returns: nothing.
-- Calls: require_names, refuse_first_use, queue_lock_class. Tables: queues (insert, lock), partitions (insert).
CREATE OR REPLACE FUNCTION penstock.ensure_partitions(queue_names text[], partition_names text[])
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    -- The commonest mistake is an empty variable, so the error says which argument it was.
    IF '' = ANY (queue_names) OR '' = ANY (partition_names) THEN
        RAISE EXCEPTION '% is empty, and a name must have 1 to 255 bytes',
            CASE WHEN '' = ANY (queue_names) THEN 'queue' ELSE 'partition' END
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_names(VARIADIC queue_names);
    PERFORM penstock.require_names(VARIADIC partition_names);

    PERFORM penstock.refuse_first_use(queue_names);
    INSERT INTO penstock.queues (name)
    SELECT DISTINCT w.name
    FROM unnest(queue_names) w (name)
    WHERE NOT EXISTS (SELECT 1 FROM penstock.queues q WHERE q.name = w.name)
    ORDER BY w.name
    ON CONFLICT DO NOTHING;

    -- The shared lock keeps delete_queue from removing a queue under a partition that is being made for it.
    PERFORM pg_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id)
    FROM (
        SELECT q.queue_id FROM penstock.queues q WHERE q.name = ANY (queue_names) ORDER BY q.queue_id
    ) q;

    -- Above READ COMMITTED a queue that was deleted meanwhile still shows; locking it fails.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM 1 FROM penstock.queues q WHERE q.name = ANY (queue_names) ORDER BY q.queue_id FOR KEY SHARE;
    END IF;

    INSERT INTO penstock.partitions (queue_id, name)
    SELECT DISTINCT q.queue_id, w.partition_name
    FROM unnest(queue_names, partition_names) w (queue_name, partition_name)
    JOIN penstock.queues q ON q.name = w.queue_name
    -- LIMIT: a plain join, planned for a small table, goes through all partitions of the queue for each.
    LEFT JOIN LATERAL (
        SELECT true AS there FROM penstock.partitions p
        WHERE p.queue_id = q.queue_id AND p.name = w.partition_name
        LIMIT 1
    ) p ON true
    WHERE p.there IS NULL
    ORDER BY q.queue_id, w.partition_name
    ON CONFLICT (queue_id, name) DO NOTHING;
END
$$;
