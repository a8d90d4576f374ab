-- penstock.push_with_options(queue_names, partition_names, counts, bodies, ends, keys, key_ends, headers, header_ends,
--                            delays, due_ats, dedupe_ids, producer, sequence)
--
-- Does what push_segments does, for messages with a delay or a dedupe id. A segment with a delay or a due time is
-- stored as scheduled, and gets its offset when it is due. A message whose dedupe id was seen in its partition within
-- the queue's dedupe_window is not stored again; the answer says which message it repeats. The id of a delayed
-- message counts from now until one window after the message gets its offset.
--
-- Locks and errors are those of push_segments. A segment that is only scheduled, and has no dedupe ids, does not
-- block other pushes to its partition.
--
-- Parameters: those of push_segments; delays - seconds per segment, and due_ats - a time per segment: at most one of
-- the two, null for none; dedupe_ids - an entry per message of all segments, one segment after the other, null for
-- none.
-- Returns: one row per segment, in the order given: what was stored and where, or the id under which it is scheduled
-- and until when; for each duplicate its position in the segment, from 0, and the original's offset and time, or the
-- id under which that one is still scheduled.
-- Calls: use_lock_timeout, require_due, lock_partitions, require_segments, admit_push, require_dedupe_ids, keep_messages,
-- append_numbered, packed_bytes, partition_span, read_answer. Tables: queues, partitions (read), scheduled,
-- dedupe_ids, producers (insert).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.push_with_options(
    queue_names     text[],
    partition_names text[],
    counts          integer[],
    bodies          bytea[],
    ends            bytea[],
    keys            bytea[]       DEFAULT NULL,
    key_ends        bytea[]       DEFAULT NULL,
    headers         bytea[]       DEFAULT NULL,
    header_ends     bytea[]       DEFAULT NULL,
    delays          float8[]      DEFAULT NULL,
    due_ats         timestamptz[] DEFAULT NULL,
    dedupe_ids      text[]        DEFAULT NULL,
    producer        uuid          DEFAULT NULL,
    sequence        bigint        DEFAULT NULL
)
RETURNS TABLE (
    partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz,
    scheduled_id bigint, due_at timestamptz,
    duplicate_positions integer[], duplicate_offsets bigint[], duplicate_times timestamptz[],
    duplicate_scheduled_ids bigint[]
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
    later        boolean[];
    gated        boolean;
    now_here     timestamptz;
    -- Of every message with a dedupe id: which segment, its position there, the id, whether it is new.
    id_segments  integer[];
    id_positions integer[];
    id_targets   bigint[];
    id_texts     text[];
    id_fresh     boolean[];
    -- Its position in what is left of the segment.
    id_kept      integer[];
    -- Of every segment, once it is stored: its offset and time, or what it is scheduled under.
    offsets      bigint[];
    times        timestamptz[];
    schedule_ids bigint[];
    dues         timestamptz[];
    now_due      record;
    stored       record;
    answer       jsonb;
BEGIN
    IF coalesce(cardinality(queue_names), 0) = 0 THEN
        RAISE EXCEPTION 'an empty push: give at least one message' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(partition_names), cardinality(counts), cardinality(bodies), cardinality(ends),
        coalesce(cardinality(delays), cardinality(queue_names)), coalesce(cardinality(due_ats), cardinality(queue_names))
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'queue_names, partition_names, counts, bodies, ends, delays and due_ats must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_due(d.delay, d.due_at) FROM unnest(delays, due_ats) d (delay, due_at);
    PERFORM penstock.use_lock_timeout();
    later := ARRAY(
        SELECT d.delay IS NOT NULL OR d.due_at IS NOT NULL
        FROM unnest(counts, delays, due_ats) WITH ORDINALITY d (count, delay, due_at, segment)
        ORDER BY d.segment
    );
    targets := penstock.lock_partitions(
        queue_names, partition_names,
        -- A scheduled segment needs no lock of its own, unless dedupe ids have to be checked.
        CASE WHEN dedupe_ids IS NULL AND producer IS NULL THEN ARRAY(
            SELECT NOT u.later FROM unnest(later) WITH ORDINALITY u (later, segment) ORDER BY u.segment
        ) END
    );
    IF producer IS NOT NULL THEN
        -- A new statement, hence a new snapshot: under the locks it sees this push, if it came before.
        SELECT d.answer INTO answer FROM penstock.producers d
        WHERE d.producer = push_with_options.producer AND d.sequence = push_with_options.sequence;
        IF FOUND THEN
            RETURN QUERY SELECT * FROM penstock.read_answer(answer);
            RETURN;
        END IF;
    END IF;
    gated := penstock.require_segments(targets, counts, bodies, ends, keys, key_ends, headers, header_ends);
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

    IF dedupe_ids IS NOT NULL THEN
        PERFORM penstock.require_dedupe_ids(targets, counts, dedupe_ids);
        -- A new statement, hence a new snapshot: under the locks it sees every id that was seen.
        SELECT
            array_agg(i.segment ORDER BY i.segment, i.n), array_agg(i.n - 1 ORDER BY i.segment, i.n),
            array_agg(i.target ORDER BY i.segment, i.n), array_agg(i.dedupe_id ORDER BY i.segment, i.n),
            array_agg(i.nth = 1 AND k.seen_at IS NULL ORDER BY i.segment, i.n)
        INTO id_segments, id_positions, id_targets, id_texts, id_fresh
        FROM (
            SELECT
                s.segment::integer, d.n::integer, s.target, s.dedupe_window, d.dedupe_id,
                row_number() OVER (PARTITION BY s.target, d.dedupe_id ORDER BY s.segment, d.n) AS nth
            FROM (
                SELECT
                    u.target, u.count, u.segment, sum(u.count) OVER (ORDER BY u.segment) - u.count AS before,
                    (SELECT make_interval(secs => (q.settings ->> 'dedupe_window')::numeric::float8)
                     FROM penstock.queues q WHERE q.name = u.queue_name) AS dedupe_window
                FROM unnest(targets, counts, queue_names) WITH ORDINALITY u (target, count, queue_name, segment)
            ) s
            CROSS JOIN LATERAL unnest(dedupe_ids[s.before + 1 : s.before + s.count]) WITH ORDINALITY d (dedupe_id, n)
            WHERE d.dedupe_id IS NOT NULL
        ) i
        -- LIMIT, here and below: a plain join, planned for a small table, goes through all ids there are. And no other
        -- condition within it: another index might then seem as good.
        LEFT JOIN LATERAL (
            SELECT k.seen_at FROM penstock.dedupe_ids k
            WHERE k.partition_id = i.target AND k.dedupe_id = i.dedupe_id
            LIMIT 1
        ) k ON k.seen_at > now_here - i.dedupe_window;
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            -- This snapshot may show an id that was forgotten since; locking it fails then.
            PERFORM 1
            FROM unnest(id_targets, id_texts, id_fresh) i (target, dedupe_id, fresh)
            CROSS JOIN LATERAL (
                SELECT 1 FROM penstock.dedupe_ids k
                WHERE k.partition_id = i.target AND k.dedupe_id = i.dedupe_id
                LIMIT 1
                FOR KEY SHARE
            ) k
            WHERE NOT i.fresh;
        END IF;
    END IF;

    id_kept := id_positions;
    IF false = ANY (id_fresh) THEN
        id_kept := ARRAY(
            SELECT i.position - count(*) FILTER (WHERE NOT i.fresh) OVER (
                PARTITION BY i.segment ORDER BY i.position ROWS UNBOUNDED PRECEDING
            )
            FROM unnest(id_segments, id_positions, id_fresh) WITH ORDINALITY i (segment, position, fresh, n)
            ORDER BY i.n
        );
        SELECT
            array_agg(k.count ORDER BY s.segment), array_agg(k.body ORDER BY s.segment),
            array_agg(k.ends ORDER BY s.segment),
            array_agg(k.keys ORDER BY s.segment), array_agg(k.key_ends ORDER BY s.segment),
            array_agg(k.headers ORDER BY s.segment), array_agg(k.header_ends ORDER BY s.segment)
        INTO counts, bodies, ends, keys, key_ends, headers, header_ends
        FROM unnest(counts, bodies, ends, keys, key_ends, headers, header_ends) WITH ORDINALITY
            s (count, body, ends, keys, key_ends, headers, header_ends, segment)
        LEFT JOIN (
            SELECT i.segment, array_agg(i.position) AS positions
            FROM unnest(id_segments, id_positions, id_fresh) i (segment, position, fresh)
            WHERE NOT i.fresh
            GROUP BY i.segment
        ) d ON d.segment = s.segment
        CROSS JOIN LATERAL penstock.keep_messages(
            s.count, s.body, s.ends, s.keys, s.key_ends, s.headers, s.header_ends, d.positions
        ) k;
    END IF;

    IF gated THEN
        PERFORM penstock.admit_push(targets, counts);
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
    FROM unnest(targets, later, counts, bodies, ends, keys, key_ends, headers, header_ends) WITH ORDINALITY
        s (target, later, count, body, ends, keys, key_ends, headers, header_ends, segment)
    WHERE s.count > 0 AND NOT s.later;
    IF now_due.targets IS NOT NULL THEN
        FOR stored IN
            SELECT a.*, now_due.segments[a.nth] AS segment
            FROM penstock.append_numbered(
                now_due.targets, now_due.counts, now_due.bodies, now_due.ends,
                now_due.keys, now_due.key_ends, now_due.headers, now_due.header_ends
            ) WITH ORDINALITY a (target, first_offset, message_count, created_at, nth)
        LOOP
            offsets[stored.segment] := stored.first_offset;
            times[stored.segment] := stored.created_at;
        END LOOP;
    END IF;

    schedule_ids := ARRAY(
        SELECT CASE WHEN s.later AND s.count > 0 THEN nextval('penstock.scheduled_seq') END
        FROM unnest(counts, later) WITH ORDINALITY s (count, later, segment)
        ORDER BY s.segment
    );
    INSERT INTO penstock.scheduled (
        scheduled_id, queue_id, partition_id, due_at, created_at, count, bytes,
        body, ends, keys, key_ends, headers, header_ends, dedupe_ids, dedupe_positions
    )
    SELECT
        s.scheduled_id, (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = s.target), s.target,
        s.due_at, now_here, s.count, penstock.packed_bytes(s.body, s.keys, s.headers),
        s.body, s.ends, s.keys, s.key_ends, s.headers, s.header_ends, i.dedupe_ids, i.positions
    FROM unnest(
        schedule_ids, targets, dues, counts, bodies, ends, keys, key_ends, headers, header_ends
    ) WITH ORDINALITY s (
        scheduled_id, target, due_at, count, body, ends, keys, key_ends, headers, header_ends, segment
    )
    LEFT JOIN (
        SELECT
            i.segment, array_agg(i.dedupe_id ORDER BY i.kept) AS dedupe_ids, array_agg(i.kept ORDER BY i.kept) AS positions
        FROM unnest(id_segments, id_kept, id_texts, id_fresh) i (segment, kept, dedupe_id, fresh)
        WHERE i.fresh
        GROUP BY i.segment
    ) i ON i.segment = s.segment
    WHERE s.scheduled_id IS NOT NULL;

    IF id_fresh IS NOT NULL THEN
        INSERT INTO penstock.dedupe_ids AS k (
            partition_id, dedupe_id, queue_id, seen_at, message_offset, scheduled_id
        )
        SELECT
            i.target, i.dedupe_id, (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = i.target),
            CASE WHEN later[i.segment] THEN 'infinity' ELSE times[i.segment] END,
            offsets[i.segment] + i.kept, schedule_ids[i.segment]
        FROM unnest(id_segments, id_kept, id_targets, id_texts, id_fresh) i (segment, kept, target, dedupe_id, fresh)
        WHERE i.fresh
        -- One that outlived its window. Maintenance may delete it right now: then it is inserted.
        ON CONFLICT ON CONSTRAINT dedupe_ids_pkey DO UPDATE
        SET seen_at = EXCLUDED.seen_at, message_offset = EXCLUDED.message_offset, scheduled_id = EXCLUDED.scheduled_id;
    END IF;

    SELECT jsonb_agg(jsonb_build_object(
        'partition_id', s.target,
        -- Of what was repeated altogether, where the next message would go.
        'first_offset', CASE WHEN s.later THEN NULL WHEN s.count > 0 THEN s.first_offset ELSE (
            SELECT p.head_offset FROM penstock.partition_span(s.target) p
        ) END,
        'message_count', s.count, 'created_at', s.created_at,
        'scheduled_id', s.scheduled_id, 'due_at', CASE WHEN s.later THEN s.due_at END,
        'duplicate_positions', d.positions, 'duplicate_offsets', d.offsets,
        'duplicate_times', d.times, 'duplicate_scheduled_ids', d.scheduled_ids
    ) ORDER BY s.segment)
    INTO answer
    FROM unnest(targets, later, counts, offsets, times, schedule_ids, dues) WITH ORDINALITY
        s (target, later, count, first_offset, created_at, scheduled_id, due_at, segment)
    LEFT JOIN (
        SELECT
            i.segment, array_agg(i.position ORDER BY i.position) AS positions,
            array_agg(k.message_offset ORDER BY i.position) AS offsets,
            array_agg(nullif(k.seen_at, 'infinity') ORDER BY i.position) AS times,
            array_agg(k.scheduled_id ORDER BY i.position) AS scheduled_ids
        FROM unnest(id_segments, id_positions, id_targets, id_texts, id_fresh)
            i (segment, position, target, dedupe_id, fresh)
        CROSS JOIN LATERAL (
            SELECT k.* FROM penstock.dedupe_ids k
            WHERE k.partition_id = i.target AND k.dedupe_id = i.dedupe_id
            LIMIT 1
        ) k
        WHERE NOT i.fresh
        GROUP BY i.segment
    ) d ON d.segment = s.segment;
    IF producer IS NOT NULL THEN
        INSERT INTO penstock.producers (producer, sequence, pushed_at, answer)
        VALUES (push_with_options.producer, push_with_options.sequence, now_here, answer);
    END IF;
    RETURN QUERY SELECT * FROM penstock.read_answer(answer);
END
$$;
