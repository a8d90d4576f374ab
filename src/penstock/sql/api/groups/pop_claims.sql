-- penstock.pop_claims(queue_name, group_name, partition_name, max_messages, max_bytes, max_partitions, lease_time,
--                     consumer, auto_ack, lows, passing, durable, first_use)
--
-- Claims partitions that have messages for a group and returns the messages, still packed: the form that the clients
-- use. Queue and group come into being on first use. It takes partitions from the front of the ready list, so the one
-- that waited longest comes first; it never locks a partition and never waits. With nothing to give it writes nothing.
--
-- Parameters: partition_name - null for any; max_messages and max_bytes - of each partition; lease_time - seconds,
-- null for the group's or the queue's; consumer - a name for operators; auto_ack - count as done what is handed out
-- (at most once); lows - for each of the queue's priorities, where in the ready list to begin: a client that has just taken an
-- entry looks no further back, until it does so again every few seconds. Null begins at the front; passing - ids of
-- partitions to leave alone; durable - false commits the caller's transaction without waiting for the disk, unless auto_ack:
-- a claim that a crash of the server undoes is delivered again. Only for a caller who does nothing else in it;
-- first_use - false: a queue or group that does not exist, or cannot be popped, has nothing to give.
-- Returns: for each claim one row per slice. `claimed_from` is where the claim begins, `entry_seq` which ready list entry
-- it had, `entry_level` which of the priorities, `shared` the group's mode.
-- Calls: require_read_committed, ensure_group, claim_named, claim_partition, claim_range, stop_after_bytes, end_at,
-- joined_slice, segment_slices. Tables: queues, consumer_groups, partitions, segments (read), ready (delete), journal, claims (insert).
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
    passing        bigint[] DEFAULT NULL,
    durable        boolean  DEFAULT true,
    first_use      boolean  DEFAULT true
)
RETURNS TABLE (
    group_id integer, partition_id bigint, partition_of text, lease_id uuid, lease_until timestamptz,
    attempt smallint, claimed_from bigint, claimed_to bigint, entry_level integer, entry_seq bigint, shared boolean,
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
    entry    penstock.ready;
    before   penstock.journal;
    ordinary boolean;
    bytes    integer;
    low      integer;
    high     integer;
    length   integer;
    stop     bigint;
    head     bigint;
    sliced   boolean;
    joined   boolean;
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
    IF NOT (durable OR auto_ack) THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    SELECT g.group_id, q.queue_id, q.settings || g.config AS settings, q.priorities, g.mode INTO reader
    FROM penstock.queues q
    JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
    WHERE q.name = queue_name AND g.name = group_name;
    IF NOT first_use AND reader.mode IS DISTINCT FROM 'ordered' AND reader.mode IS DISTINCT FROM 'shared' THEN
        RETURN;
    END IF;
    IF reader.group_id IS NULL THEN
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

    -- The commonest pop: one partition of a queue without priorities. Each statement here costs as much as the insert of a
    -- row, so the ordinary case is written out; claim_partition and claim_range, which it agrees with, do all else.
    IF max_partitions = 1 AND cardinality(reader.priorities) = 1 AND passing IS NULL AND NOT auto_ack THEN
        DELETE FROM penstock.ready y
        WHERE y.ctid = (
            SELECT y.ctid FROM penstock.ready y
            WHERE y.group_id = reader.group_id AND y.priority = reader.priorities[1] AND y.seq >= coalesce(lows[1], 0)
            ORDER BY y.seq
            LIMIT 1
            FOR UPDATE SKIP LOCKED
        )
        RETURNING y.* INTO entry;
        IF entry.seq IS NULL THEN
            RETURN;
        END IF;
        partition_id := entry.partition_id;
        shared := reader.mode = 'shared';
        IF shared THEN
            ordinary := entry.attempt = 0 AND entry.hi - entry.lo <= max_messages;
            claimed_from := entry.lo;
            attempt := 1;
        ELSE
            -- A new statement, hence a new snapshot: what the journal says now that the entry is ours.
            SELECT j.* INTO before FROM penstock.journal j
            WHERE j.group_id = reader.group_id AND j.partition_id = entry.partition_id
            ORDER BY j.version DESC
            LIMIT 1;
            ordinary := before.state = 'r' AND before.ready_seq = entry.seq AND before.narrow_to IS NULL
                AND reader.settings @> '{"delay": 0, "quiet_period": 0}';
            claimed_from := before.committed;
            attempt := before.attempt + 1;
        END IF;
        IF ordinary THEN
            SELECT
                p.name, s.base_offset, s.count, s.created_at, s.bytes, 0, s.run_counts, s.run_times,
                0, coalesce(s.body, s.body_compressed), s.ends, 0, s.keys, s.key_ends, 0, s.headers, s.header_ends,
                -- Else retention has dropped the next message.
                s.ends IS NOT NULL AND s.base_offset + s.count > claimed_from,
                least(claimed_from + max_messages, entry.hi), s.base_offset + s.count
            INTO
                partition_of, base_offset, count, created_at, bytes, run_skip, run_counts, run_times,
                body_start, body, ends, key_start, keys, key_ends, header_start, headers, header_ends,
                ordinary, stop, claimed_to
            FROM penstock.segments s
            JOIN penstock.partitions p ON p.partition_id = s.partition_id
            WHERE s.partition_id = entry.partition_id AND s.base_offset <= claimed_from
            ORDER BY s.base_offset DESC
            LIMIT 1;
        END IF;
        IF ordinary THEN
            entry_level := 1;
            entry_seq := entry.seq;
            lease_id := gen_random_uuid();
            lease_until := clock_timestamp() + make_interval(
                secs => coalesce(lease_time, (reader.settings ->> 'lease_time')::float8)
            );
            sliced := false;
            IF claimed_to < stop AND (shared OR bytes < max_bytes) THEN
                SELECT s.base_offset + s.count INTO head FROM penstock.segments s
                WHERE s.partition_id = entry.partition_id
                ORDER BY s.base_offset DESC
                LIMIT 1;
                IF head > claimed_to THEN
                    claimed_to := penstock.stop_after_bytes(entry.partition_id, claimed_from, least(stop, head), max_bytes);
                    sliced := true;
                END IF;
                ordinary := NOT shared OR claimed_to = stop; -- else the rest goes back to the ready list
            END IF;
            IF NOT sliced AND (claimed_to > stop OR base_offset < claimed_from) THEN
                claimed_to := least(claimed_to, stop);
                IF num_nonnulls(keys, headers, run_counts) = 0 AND octet_length(ends) = 4 * count THEN
                    -- A part of a segment of plain values is cut here, as segment_slices does it.
                    low := claimed_from - base_offset;
                    high := claimed_to - base_offset;
                    length := octet_length(body);
                    body_start := penstock.end_at(ends, low - 1, length);
                    body := substring(
                        body FROM body_start + 1 FOR greatest(penstock.end_at(ends, high - 1, length) - body_start, 0)
                    );
                    ends := substring(ends FROM 4 * low + 1 FOR 4 * (high - low));
                    base_offset := claimed_from;
                    count := high - low;
                    run_skip := low;
                ELSE
                    sliced := true;
                END IF;
            END IF;
            IF ordinary AND sliced AND count = 1 AND max_bytes <= 67108864 THEN
                -- Messages that were pushed one at a time, it seems.
                RETURN QUERY
                SELECT
                    group_id, partition_id, partition_of, lease_id, lease_until, attempt, claimed_from, claimed_to,
                    entry_level, entry_seq, shared, s.*
                FROM penstock.joined_slice(entry.partition_id, claimed_from, claimed_to) s;
                joined := FOUND;
            END IF;
            IF ordinary AND sliced AND joined IS NOT TRUE THEN
                RETURN QUERY
                SELECT
                    group_id, partition_id, partition_of, lease_id, lease_until, attempt, claimed_from, claimed_to,
                    entry_level, entry_seq, shared, s.*
                FROM penstock.segment_slices(entry.partition_id, claimed_from, claimed_to) s;
                ordinary := FOUND; -- a purge may have committed since we looked what there is
            END IF;
        END IF;
        IF ordinary THEN
            IF shared THEN
                INSERT INTO penstock.claims (
                    group_id, partition_id, lo, hi, attempt, lease_id, due_at, consumer, first_error, last_error, alone
                ) VALUES (
                    group_id, partition_id, claimed_from, claimed_to, attempt, lease_id, lease_until, consumer,
                    entry.first_error, entry.last_error, claimed_to - claimed_from = 1
                );
            ELSE
                INSERT INTO penstock.journal (
                    group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt,
                    due_at, lease_id, consumer, acked_at, first_error, last_error
                ) VALUES (
                    group_id, partition_id, before.version + 1, 'c', claimed_from, claimed_to, before.skipped, attempt,
                    before.narrow_attempt, lease_until, lease_id, consumer, before.acked_at,
                    before.first_error, before.last_error
                );
            END IF;
            IF NOT sliced THEN
                RETURN NEXT;
            END IF;
            RETURN;
        END IF;
        IF shared THEN
            RETURN QUERY SELECT * FROM penstock.claim_range(
                entry, 1, reader.settings, max_messages, max_bytes, lease_time, consumer, auto_ack
            );
        ELSE
            RETURN QUERY SELECT * FROM penstock.claim_partition(
                reader.group_id, entry.partition_id, NULL, 1, entry.seq, reader.settings,
                max_messages, max_bytes, lease_time, consumer, auto_ack
            );
        END IF;
        IF FOUND THEN
            RETURN;
        END IF;
        vain := 1; -- the entry had nothing to give, those behind it may
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
        -- An entry may turn out to have nothing to give, and those behind it something: go on, within reason.
        LOOP
            asked := wanted;
            taken := 0;
            FOR entry IN
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
                        reader.group_id, entry.partition_id, NULL, level, entry.seq, reader.settings,
                        max_messages, max_bytes, lease_time, consumer, auto_ack
                    );
                ELSE
                    RETURN QUERY SELECT * FROM penstock.claim_range(
                        entry, level, reader.settings, max_messages, max_bytes, lease_time, consumer, auto_ack
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
