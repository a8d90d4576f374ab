-- penstock.push_unique_segments(queue_names, partition_names, counts, bodies, ends, keys, key_ends, headers,
--                               header_ends, delays, due_ats, unique_keys, unique_for, unique_until, replaces,
--                               producer, sequence)
--
-- Does what push_segments does, for messages with a unique key. Such a message is not stored while the last one of its
-- queue with the same key counts: for so many seconds, or until it is taken, or done; if both are given, while both
-- hold. The answer says which one that is. With `replaces`, one that still waits gives way to the new one: a scheduled
-- one is replaced in its place, one in the log is cancelled.
--
-- Locks: those of push_segments, then unique keys in their order, then scheduled messages by id. Two pushes of one key
-- at once wait for each other; the key counts from the moment that the first one commits.
--
-- Parameters: those of push_with_options but for dedupe ids; unique_keys - one per segment, null for none; a segment
-- that has one holds one message; unique_for - seconds, unique_until - 'taken' or 'done', replaces - one per segment.
-- Returns: one row per segment, in the order given: outcome - 'stored', 'duplicate' or 'replaced'; where it went, or the
-- id under which it is scheduled and until when; and for a duplicate, or what was replaced, where the earlier message
-- is.
-- Calls: use_lock_timeout, require_unique, require_due, lock_partitions, require_segments, admit_push, lock_unique, find_unique,
-- cancel_messages, message_id, replace_scheduled, append_numbered, packed_bytes, partition_span, read_unique_answer.
-- Tables: partitions (read), unique_keys (update), scheduled (lock, insert), producers (insert).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.push_unique_segments(
    queue_names     text[],
    partition_names text[],
    counts          integer[],
    bodies          bytea[],
    ends            bytea[],
    keys            bytea[],
    key_ends        bytea[],
    headers         bytea[],
    header_ends     bytea[],
    delays          float8[],
    due_ats         timestamptz[],
    unique_keys     text[],
    unique_for      float8[],
    unique_until    text[],
    replaces        boolean[],
    producer        uuid   DEFAULT NULL,
    sequence        bigint DEFAULT NULL
)
RETURNS TABLE (
    outcome text, partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz,
    scheduled_id bigint, due_at timestamptz,
    earlier_partition_id bigint, earlier_offset bigint, earlier_time timestamptz, earlier_scheduled_id bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    targets      bigint[];
    queues       integer[];
    gated        boolean;
    now_here     timestamptz;
    dues         timestamptz[];
    -- Of every segment: what becomes of it, and the earlier message, if that matters.
    outcomes     text[];
    appended     boolean[];
    earlier      record;
    offsets      bigint[];
    times        timestamptz[];
    schedule_ids bigint[];
    places       tid[];
    now_due      record;
    stored       record;
    answer       jsonb;
BEGIN
    IF coalesce(cardinality(queue_names), 0) = 0 THEN
        RAISE EXCEPTION 'an empty push: give at least one message' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(partition_names), cardinality(counts), cardinality(bodies), cardinality(ends),
        coalesce(cardinality(delays), cardinality(queue_names)), coalesce(cardinality(due_ats), cardinality(queue_names)),
        cardinality(unique_keys), cardinality(unique_for), cardinality(unique_until), cardinality(replaces)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'queue_names, partition_names, counts, bodies, ends, delays, due_ats, unique_keys, unique_for, '
            'unique_until and replaces must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_unique(queue_names, counts, unique_keys, unique_for, unique_until);
    PERFORM penstock.require_due(d.delay, d.due_at) FROM unnest(delays, due_ats) d (delay, due_at);
    PERFORM penstock.use_lock_timeout();
    targets := penstock.lock_partitions(queue_names, partition_names);
    IF producer IS NOT NULL THEN
        -- A new statement, hence a new snapshot: under the locks it sees this push, if it came before.
        SELECT d.answer INTO answer FROM penstock.producers d
        WHERE d.producer = push_unique_segments.producer AND d.sequence = push_unique_segments.sequence;
        IF FOUND THEN
            RETURN QUERY SELECT * FROM penstock.read_unique_answer(answer);
            RETURN;
        END IF;
    END IF;
    gated := penstock.require_segments(targets, counts, bodies, ends, keys, key_ends, headers, header_ends);
    queues := ARRAY(
        SELECT (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = t.target)
        FROM unnest(targets) WITH ORDINALITY t (target, segment)
        ORDER BY t.segment
    );
    PERFORM penstock.lock_unique(array_agg(u.queue_id), array_agg(u.unique_key))
    FROM unnest(queues, unique_keys) u (queue_id, unique_key)
    WHERE u.unique_key IS NOT NULL;
    IF true = ANY (replaces) THEN
        -- What is to be replaced must not be published now. With the lock, another statement tells whether it was.
        PERFORM 1 FROM penstock.scheduled s
        WHERE s.scheduled_id = ANY (ARRAY(
            SELECT f.scheduled_id FROM penstock.find_unique(queues, unique_keys) f
            WHERE f.scheduled_id IS NOT NULL AND replaces[f.nth]
        ))
        ORDER BY s.scheduled_id
        FOR UPDATE;
    END IF;
    now_here := clock_timestamp();
    dues := ARRAY(
        -- Not in the past: frequent sweeps begin where the last one ended.
        SELECT CASE
            WHEN d.delay IS NOT NULL THEN now_here + make_interval(secs => d.delay)
            WHEN d.due_at IS NOT NULL THEN greatest(d.due_at, now_here)
        END
        FROM unnest(counts, delays, due_ats) WITH ORDINALITY d (count, delay, due_at, segment)
        ORDER BY d.segment
    );
    -- A new statement, hence a new snapshot: under the locks it sees the newest message of each key.
    SELECT
        array_agg(CASE
            WHEN f.nth IS NULL
                OR f.seen_at <= now_here - make_interval(secs => u.seconds)
                OR u.until = 'done' AND f.state IN ('done', 'gone')
                OR u.until = 'taken' AND f.state NOT IN ('waiting', 'windowed')
                -- A worker may have read it already: what was pushed since must not be lost.
                OR u.until = 'taken' AND f.state = 'windowed' AND NOT u.replaces THEN 'stored'
            WHEN u.replaces AND f.can_give_way THEN 'replaced'
            ELSE 'duplicate'
        END ORDER BY u.segment) AS outcomes,
        array_agg(f.partition_id ORDER BY u.segment) AS targets, array_agg(f.message_offset ORDER BY u.segment) AS offsets,
        array_agg(f.seen_at ORDER BY u.segment) AS times, array_agg(f.scheduled_id ORDER BY u.segment) AS scheduled_ids
    INTO earlier
    FROM unnest(unique_for, unique_until, replaces) WITH ORDINALITY u (seconds, until, replaces, segment)
    LEFT JOIN penstock.find_unique(queues, unique_keys) f ON f.nth = u.segment;
    outcomes := earlier.outcomes;
    -- All but duplicates, and those that take the place of a scheduled one.
    appended := ARRAY(
        SELECT o.outcome = 'stored' OR o.outcome = 'replaced' AND o.scheduled_id IS NULL
        FROM unnest(outcomes, earlier.scheduled_ids) WITH ORDINALITY o (outcome, scheduled_id, segment)
        ORDER BY o.segment
    );
    IF gated THEN
        PERFORM penstock.admit_push(targets, ARRAY(
            SELECT CASE WHEN a.appended THEN a.count ELSE 0 END
            FROM unnest(appended, counts) WITH ORDINALITY a (appended, count, segment)
            ORDER BY a.segment
        ));
    END IF;
    IF 'replaced' = ANY (outcomes) THEN
        PERFORM penstock.cancel_messages(
            array_agg(penstock.message_id(e.target, e.message_offset, e.seen_at) ORDER BY e.segment)
        )
        FROM unnest(outcomes, appended, earlier.targets, earlier.offsets, earlier.times) WITH ORDINALITY
            e (outcome, appended, target, message_offset, seen_at, segment)
        WHERE e.outcome = 'replaced' AND e.appended
        HAVING count(*) > 0;
    END IF;

    offsets := array_fill(NULL::bigint, ARRAY[cardinality(targets)]);
    times := array_fill(now_here, ARRAY[cardinality(targets)]);
    SELECT
        array_agg(s.target ORDER BY s.segment) AS targets, array_agg(s.count ORDER BY s.segment) AS counts,
        array_agg(s.body ORDER BY s.segment) AS bodies, array_agg(s.ends ORDER BY s.segment) AS ends,
        array_agg(s.keys ORDER BY s.segment) AS keys, array_agg(s.key_ends ORDER BY s.segment) AS key_ends,
        array_agg(s.headers ORDER BY s.segment) AS headers, array_agg(s.header_ends ORDER BY s.segment) AS header_ends,
        array_agg(s.segment ORDER BY s.segment) AS segments
    INTO now_due
    FROM unnest(targets, appended, dues, counts, bodies, ends, keys, key_ends, headers, header_ends) WITH ORDINALITY
        s (target, appended, due_at, count, body, ends, keys, key_ends, headers, header_ends, segment)
    WHERE s.appended AND s.due_at IS NULL;
    IF now_due.targets IS NOT NULL THEN
        FOR stored IN
            SELECT a.first_offset, a.created_at, now_due.segments[a.nth] AS segment
            FROM penstock.append_numbered(
                now_due.targets, now_due.counts, now_due.bodies, now_due.ends,
                now_due.keys, now_due.key_ends, now_due.headers, now_due.header_ends
            ) WITH ORDINALITY a (partition_id, first_offset, message_count, created_at, nth)
        LOOP
            offsets[stored.segment] := stored.first_offset;
            times[stored.segment] := stored.created_at;
        END LOOP;
    END IF;

    schedule_ids := ARRAY(
        SELECT CASE
            WHEN s.appended AND s.due_at IS NOT NULL THEN nextval('penstock.scheduled_seq')
            WHEN s.outcome = 'replaced' THEN s.earlier
        END
        FROM unnest(outcomes, appended, dues, earlier.scheduled_ids) WITH ORDINALITY
            s (outcome, appended, due_at, earlier, segment)
        ORDER BY s.segment
    );
    IF num_nonnulls(VARIADIC dues) > 0 THEN
        INSERT INTO penstock.scheduled (
            scheduled_id, queue_id, partition_id, due_at, created_at, count, bytes,
            body, ends, keys, key_ends, headers, header_ends, is_unique
        )
        SELECT
            s.scheduled_id, s.queue_id, s.target, s.due_at, now_here, s.count,
            penstock.packed_bytes(s.body, s.keys, s.headers),
            s.body, s.ends, s.keys, s.key_ends, s.headers, s.header_ends, s.unique_key IS NOT NULL
        FROM unnest(
            schedule_ids, queues, targets, appended, dues, counts, bodies, ends, keys, key_ends, headers, header_ends,
            unique_keys
        ) s (
            scheduled_id, queue_id, target, appended, due_at, count, body, ends, keys, key_ends, headers, header_ends,
            unique_key
        )
        WHERE s.appended AND s.scheduled_id IS NOT NULL;
    END IF;
    IF 'replaced' = ANY (outcomes) THEN
        PERFORM penstock.replace_scheduled(
            array_agg(s.scheduled_id), array_agg(s.target), array_agg(s.due_at), array_agg(s.body), array_agg(s.ends),
            array_agg(s.keys), array_agg(s.key_ends), array_agg(s.headers), array_agg(s.header_ends)
        )
        FROM unnest(schedule_ids, targets, outcomes, appended, dues, bodies, ends, keys, key_ends, headers, header_ends)
            s (scheduled_id, target, outcome, appended, due_at, body, ends, keys, key_ends, headers, header_ends)
        WHERE s.outcome = 'replaced' AND NOT s.appended
        HAVING count(*) > 0;
    END IF;

    -- Locked, so they stay where they are. A join by their key, planned for a small table, goes through all of them.
    places := ARRAY(
        SELECT (
            SELECT k.ctid FROM penstock.unique_keys k
            WHERE k.queue_id = u.queue_id AND k.unique_key = u.unique_key
            LIMIT 1
        )
        FROM unnest(queues, unique_keys) WITH ORDINALITY u (queue_id, unique_key, segment)
        ORDER BY u.segment
    );
    UPDATE penstock.unique_keys k
    SET partition_id = n.target, message_offset = n.message_offset, scheduled_id = n.scheduled_id,
        seen_at = CASE WHEN n.scheduled_id IS NULL THEN n.seen_at ELSE 'infinity' END,
        keep_for = coalesce(n.seconds, 0)
    FROM unnest(places, targets, outcomes, offsets, schedule_ids, times, unique_for)
        n (place, target, outcome, message_offset, scheduled_id, seen_at, seconds)
    WHERE k.ctid = n.place AND n.outcome <> 'duplicate';
    IF 'duplicate' = ANY (outcomes) AND num_nonnulls(VARIADIC unique_for) > 0 THEN
        -- One that asks for a longer time than those before.
        UPDATE penstock.unique_keys k
        SET keep_for = n.seconds
        FROM unnest(places, outcomes, unique_for) n (place, outcome, seconds)
        WHERE k.ctid = n.place AND n.outcome = 'duplicate' AND k.keep_for < n.seconds;
    END IF;

    SELECT jsonb_agg(jsonb_build_object(
        'outcome', s.outcome, 'partition_id', s.target,
        -- Of what was not stored now, where the next message would go.
        'first_offset', CASE
            WHEN s.due_at IS NOT NULL OR s.scheduled_id IS NOT NULL THEN NULL
            ELSE coalesce(s.first_offset, (SELECT p.head_offset FROM penstock.partition_span(s.target) p))
        END,
        'message_count', CASE WHEN s.appended THEN s.count ELSE 0 END, 'created_at', s.created_at,
        'scheduled_id', s.scheduled_id,
        'due_at', CASE
            WHEN s.outcome = 'replaced' AND NOT s.appended THEN (SELECT d.due_at FROM penstock.scheduled d WHERE d.scheduled_id = s.scheduled_id)
            ELSE s.due_at
        END,
        'earlier_partition_id', CASE WHEN s.outcome <> 'stored' THEN s.earlier_target END,
        'earlier_offset', CASE WHEN s.outcome <> 'stored' THEN s.earlier_offset END,
        'earlier_time', CASE WHEN s.outcome <> 'stored' THEN nullif(s.earlier_time, 'infinity') END,
        'earlier_scheduled_id', CASE WHEN s.outcome <> 'stored' THEN s.earlier_scheduled END
    ) ORDER BY s.segment)
    INTO answer
    FROM unnest(
        targets, outcomes, appended, counts, offsets, times, schedule_ids, dues,
        earlier.targets, earlier.offsets, earlier.times, earlier.scheduled_ids
    ) WITH ORDINALITY s (
        target, outcome, appended, count, first_offset, created_at, scheduled_id, due_at,
        earlier_target, earlier_offset, earlier_time, earlier_scheduled, segment
    );
    IF producer IS NOT NULL THEN
        INSERT INTO penstock.producers (producer, sequence, pushed_at, answer)
        VALUES (push_unique_segments.producer, push_unique_segments.sequence, now_here, answer);
    END IF;
    RETURN QUERY SELECT * FROM penstock.read_unique_answer(answer);
END
$$;
