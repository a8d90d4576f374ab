-- penstock.pop_claims(queue_name, group_name, partition_name, max_messages, max_bytes, max_partitions, lease_time,
--                     consumer, auto_ack, lows, passing)
--
-- Claims partitions that have messages for a group and returns the messages, still packed: the form that the clients
-- use. Queue and group come into being on first use. It takes partitions from the front of the ready list, so the one
-- that waited longest comes first; it never locks a partition and never waits. With nothing to give it writes nothing.
--
-- Parameters: partition_name - null for any; max_messages and max_bytes - of each partition; lease_time - seconds,
-- null for the group's or the queue's; consumer - a name for operators; auto_ack - count as done what is handed out
-- (at most once); lows - for each of the queue's priorities, where in the ready list to begin: a client that has just taken a
-- place looks no further back, until it does so again every few seconds. Null begins at the front; passing - ids of
-- partitions to leave alone.
-- Returns: for each claim one row per slice. `claimed_from` is where the claim begins, `line_seq` which ready list entry
-- it had, `line_level` which of the priorities, `shared` the group's mode.
-- Calls: require_read_committed, ensure_group, claim_named, claim_partition, claim_range.
-- Tables: queues, consumer_groups (read), ready (delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.pop_claims(
    queue_name     text,
    group_name     text,
    partition_name text    DEFAULT NULL,
    max_messages   integer DEFAULT 100,
    max_bytes      bigint  DEFAULT 8388608,
    max_partitions integer DEFAULT 1,
    lease_time     float8  DEFAULT NULL,
    consumer       text    DEFAULT NULL,
    auto_ack       boolean DEFAULT false,
    lows           bigint[] DEFAULT NULL,
    passing        bigint[] DEFAULT NULL
)
RETURNS TABLE (
    group_id integer, partition_id bigint, partition_of text, lease_id uuid, lease_until timestamptz,
    attempt smallint, claimed_from bigint, claimed_to bigint, line_level integer, line_seq bigint, shared boolean,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_sort = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    reader   record;
    levels   integer[];
    level    integer;
    many     integer;
    line     penstock.ready;
    wanted   integer := max_partitions;
    asked    integer;
    taken    integer;
    vain     integer := 0;
BEGIN
    -- A lease_time of null is the group's; of the others each must be a number, or there would be no end.
    IF (max_messages > 0 AND max_partitions > 0 AND max_bytes > 0) IS NOT TRUE OR lease_time <= 0 OR lease_time > 604800 THEN
        RAISE EXCEPTION 'max_messages, max_bytes, max_partitions and lease_time must be above 0, and lease_time at most 604800'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM penstock.require_read_committed('pop');
    END IF;
    SELECT g.group_id, q.queue_id, q.settings || g.config AS settings, q.priorities, g.mode INTO reader
    FROM penstock.queues q
    JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
    WHERE q.name = queue_name AND g.name = group_name;
    IF NOT FOUND THEN
        PERFORM penstock.ensure_group(queue_name, group_name);
        SELECT g.group_id, q.queue_id, q.settings || g.config AS settings, q.priorities, g.mode INTO reader
        FROM penstock.queues q
        JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
        WHERE q.name = queue_name AND g.name = group_name;
    END IF;
    group_id := reader.group_id;
    IF reader.mode = 'external' THEN
        RAISE EXCEPTION 'group "%" of queue "%" is external: its reader keeps its own positions', group_name, queue_name
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Pop with another group.';
    END IF;

    IF partition_name IS NOT NULL THEN
        RETURN QUERY SELECT * FROM penstock.claim_named(
            reader.group_id, reader.queue_id, partition_name, reader.mode, reader.priorities, reader.settings,
            max_messages, max_bytes, lease_time, consumer, auto_ack
        );
        RETURN;
    END IF;

    -- Highest priority first. One pop in eight begins at a lower level, so that nobody starves: the less often the lower it
    -- is, which is what the smaller of two random numbers does. What lies below comes next, then what lies above.
    levels := ARRAY[1];
    many := cardinality(reader.priorities);
    IF many > 1 THEN
        level := CASE WHEN random() < 0.125 THEN floor(least(random(), random()) * (many - 1))::integer + 2 ELSE 1 END;
        levels := ARRAY(SELECT i FROM generate_series(level, many) i) || ARRAY(SELECT i FROM generate_series(1, level - 1) i);
    END IF;
    FOREACH level IN ARRAY levels LOOP
        -- A place may turn out to have nothing to give, and those behind it something: go on, within reason.
        LOOP
            asked := wanted;
            taken := 0;
            FOR line IN
                WITH taken AS MATERIALIZED (
                    SELECT y.ctid FROM penstock.ready y
                    WHERE y.group_id = reader.group_id AND y.priority = reader.priorities[level]
                      AND y.seq >= coalesce(lows[level], 0)
                      AND (passing IS NULL OR y.partition_id <> ALL (passing))
                    ORDER BY y.seq
                    LIMIT asked
                    FOR UPDATE SKIP LOCKED
                )
                DELETE FROM penstock.ready y
                WHERE y.ctid = ANY (ARRAY(SELECT t.ctid FROM taken t))
                RETURNING y.*
            LOOP
                taken := taken + 1;
                IF reader.mode = 'ordered' THEN
                    RETURN QUERY SELECT * FROM penstock.claim_partition(
                        reader.group_id, line.partition_id, NULL, level, line.seq, reader.settings,
                        max_messages, max_bytes, lease_time, consumer, auto_ack
                    );
                ELSE
                    RETURN QUERY SELECT * FROM penstock.claim_range(
                        line, level, reader.settings, max_messages, max_bytes, lease_time, consumer, auto_ack
                    );
                END IF;
                IF FOUND THEN
                    wanted := wanted - 1;
                ELSE
                    vain := vain + 1;
                END IF;
            END LOOP;
            EXIT WHEN wanted = 0 OR taken < asked OR vain >= 1000;
        END LOOP;
        EXIT WHEN wanted = 0 OR vain >= 1000;
    END LOOP;
END
$$;
