-- penstock.push_segments(queue_names, partition_names, counts, bodies, ends, keys, key_ends, headers, header_ends)
--
-- Appends packed segments to any number of partitions of any number of queues, in one transaction: the form
-- that the clients use. Queues and partitions come into being on first use. Segments of one partition keep the
-- order they are given in.
--
-- Locks, in this order: new names (sorted), then partitions by id (FOR NO KEY UPDATE, until the end of the
-- caller's transaction). Whoever pushes twice in one transaction to partitions in another order than somebody
-- else can deadlock; PostgreSQL then ends one of the two with 40P01. A lock that cannot be had within
-- `penstock.lock_timeout` (default 10 s) ends with 55P03. Both changed nothing and may be tried again, and so may
-- 40001, which a REPEATABLE READ or SERIALIZABLE caller gets when somebody pushed after its snapshot was taken.
--
-- Parameters: parallel arrays, one entry per segment; the packing is that of the table `segments`, where null
-- stands for no keys or no headers. The last four may be null as a whole.
-- Returns: one row per segment, in the order given: where it went and the time its messages got.
-- Calls: ensure_partitions, append_segments. Tables: queues (read), partitions (lock), segments (insert).
CREATE OR REPLACE FUNCTION penstock.push_segments(
    queue_names     text[],
    partition_names text[],
    counts          integer[],
    bodies          bytea[],
    ends            bytea[],
    keys            bytea[] DEFAULT NULL,
    key_ends        bytea[] DEFAULT NULL,
    headers         bytea[] DEFAULT NULL,
    header_ends     bytea[] DEFAULT NULL
)
RETURNS TABLE (partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    targets bigint[];
    locked  bigint;
BEGIN
    IF coalesce(cardinality(queue_names), 0) = 0 THEN
        RAISE EXCEPTION 'an empty push: give at least one message' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(partition_names), cardinality(counts), cardinality(bodies), cardinality(ends)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'queue_names, partition_names, counts, bodies and ends must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.use_lock_timeout();
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
        PERFORM 1 FROM penstock.partitions p
        WHERE p.partition_id = ANY (targets)
        ORDER BY p.partition_id
        FOR NO KEY UPDATE;
        GET DIAGNOSTICS locked = ROW_COUNT;
        -- Fewer rows than partitions: one was deleted while we waited for its lock. It begins anew.
        EXIT WHEN locked = (SELECT count(DISTINCT t) FROM unnest(targets) t);
    END LOOP;

    -- Keeps a group from coming into being until we have committed: it would not know of these messages.
    PERFORM pg_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id)
    FROM (
        SELECT DISTINCT (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = t) AS queue_id
        FROM unnest(targets) t
        ORDER BY 1
    ) q;

    -- A new statement, hence a new snapshot: under the locks it sees every segment there is.
    IF current_setting('transaction_isolation') = 'read committed' THEN
        RETURN QUERY SELECT * FROM penstock.append_segments(
            targets, counts, bodies, ends, keys, key_ends, headers, header_ends
        );
        RETURN;
    END IF;
    -- Above READ COMMITTED there is no new snapshot; an offset that was taken meanwhile shows as a double key. Where
    -- that key was merged away or dropped since, so was the newest segment of our snapshot, and locking it fails.
    PERFORM 1 FROM penstock.segments s
    WHERE (s.partition_id, s.base_offset) IN (
        SELECT t.id, (SELECT max(g.base_offset) FROM penstock.segments g WHERE g.partition_id = t.id)
        FROM unnest(targets) t (id)
    )
    FOR SHARE;
    BEGIN
        RETURN QUERY SELECT * FROM penstock.append_segments(
            targets, counts, bodies, ends, keys, key_ends, headers, header_ends
        );
    EXCEPTION WHEN unique_violation THEN
        RAISE EXCEPTION 'a partition was pushed to after this transaction took its snapshot'
            USING ERRCODE = 'serialization_failure',
                  HINT = 'Retry the whole transaction, or push under READ COMMITTED.';
    END;
END
$$;
