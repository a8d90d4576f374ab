-- penstock.ack_and_pop(group_ids, partition_ids, lease_ids, starts, stops, queue_name, group_name, partition_name,
--                      max_messages, max_bytes, max_partitions, lease_time, consumer, auto_ack, lows, durable, passing,
--                      first_use, ahead)
--
-- Acknowledges claims and claims what is next, in one call: a consumer makes one round trip and one commit per batch. The
-- acks come first and do not depend on what is there to pop: a lease that was lost is told in `acked`, and the pop goes on.
--
-- It takes partitions from the front of the ready list, so the one that waited longest comes first; only acks wait. With
-- nothing to acknowledge and nothing to give it writes nothing. Where the list is empty, and the call ends without waiting
-- for the disk, it looks once more at what was just parked: only there it locks a partition.
--
-- Nothing that the pop finds raises an error. Unless first_use is true it creates neither queue nor group: where first_use is
-- null it raises undefined_object then; where it is false and there is none, or the group is external, it acknowledges and claims nothing, and pop_claims says why. Arguments that are wrong are
-- refused before anything is done. An error of the server (a lock timeout, a lost connection) undoes the whole call:
-- then nothing is acknowledged, and the caller sends the acks again, by themselves.
--
-- Parameters: those of ack_claims, whose arrays may be empty, then those of pop_claims; durable - false commits the caller's
-- transaction without waiting for the disk, where nothing is acknowledged, or by groups whose `durable_acks` is false, and
-- not with auto_ack; ahead - the caller does not begin with what it claims at once, and says so when it begins with what was
-- delivered before, with renew_claims: else the end of such a lease counts no attempt.
-- Returns: the rows of pop_claims behind `acked`, what ack_claims returns, the same in each. With nothing to claim there
-- is one row, whose partition_id is null; none where lease_ids is null.
-- Calls: require_read_committed, ensure_group, end_claim, end_claims, ack_shared, ack_claims, open_gate, note_probe, claim_named,
-- claim_partition, claim_range, carve_ranges, stop_after_bytes, end_at, joined_slice, segment_slices, look_again. Tables: queues,
-- consumer_groups, partitions, segments, cancellations (read), ready (delete), journal (insert), claims (insert, delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.ack_and_pop(
    group_ids      integer[],
    partition_ids  bigint[],
    lease_ids      uuid[],
    starts         bigint[],
    stops          bigint[],
    queue_name     text,
    group_name     text,
    partition_name text     DEFAULT NULL,
    max_messages   integer  DEFAULT 100,
    max_bytes      bigint   DEFAULT 8388608,
    max_partitions integer  DEFAULT 1,
    lease_time     float8   DEFAULT NULL,
    consumer       text     DEFAULT NULL,
    auto_ack       boolean  DEFAULT false,
    lows           bigint[] DEFAULT NULL,
    durable        boolean  DEFAULT true,
    passing        bigint[] DEFAULT NULL,
    first_use      boolean  DEFAULT false,
    ahead          boolean  DEFAULT false
)
RETURNS TABLE (
    acked boolean[],
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
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_sort = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    reader         integer;
    queue          integer;
    settings       jsonb;
    priorities     smallint[];
    mode           text;
    gated          boolean;
    gate           record;
    levels         integer[];
    level          integer;
    many           integer;
    entry          penstock.ready;
    newest         bigint;
    skipped        bigint;
    narrow_attempt smallint;
    acked_at       timestamptz;
    first_error    text;
    last_error     text;
    ordinary       boolean;
    plain          boolean;
    bytes          integer;
    low            integer;
    high           integer;
    length         integer;
    stop           bigint;
    head           bigint;
    sliced         boolean;
    wanted         integer;
    asked          integer;
    taken          integer;
    joined         boolean;
    latest         bigint;
    places         integer[];
    rest           boolean[];
    given          integer := 0;
    vain           integer := 0;
    patience       integer := 1000;
    looked         boolean := false;
BEGIN
    -- Each statement here costs as much as the insert of a row: hence so few of them on the way of the commonest call, and
    -- so much in one.
    -- A lease_time of null is the group's; of the others each must be a number, or there would be no end.
    IF (
        max_messages > 0 AND max_partitions > 0 AND max_bytes > 0 AND coalesce(lease_time, 1) > 0
        AND coalesce(lease_time, 1) <= 604800 AND (ahead = auto_ack) IS NOT NULL AND current_setting('transaction_isolation') = 'read committed'
    ) IS NOT TRUE THEN
        IF (max_messages > 0 AND max_partitions > 0 AND max_bytes > 0) IS NOT TRUE OR lease_time <= 0 OR lease_time > 604800
        THEN
            RAISE EXCEPTION 'max_messages, max_bytes, max_partitions and lease_time must be above 0, and lease_time at most 604800'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF ahead IS NULL OR auto_ack IS NULL THEN
            RAISE EXCEPTION '% is null but must be true or false', CASE WHEN ahead IS NULL THEN 'ahead' ELSE 'auto_ack' END
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        PERFORM penstock.require_read_committed(CASE WHEN cardinality(lease_ids) > 0 THEN 'ack' ELSE 'pop' END);
    END IF;
    SELECT g.group_id, q.queue_id, q.settings || g.config, q.priorities, g.mode, g.gated
    INTO reader, queue, settings, priorities, mode, gated
    FROM penstock.queues q
    -- LIMIT keeps this a look at one row. A join may read all groups.
    CROSS JOIN LATERAL (
        SELECT n.group_id, n.config, n.mode, n.gated FROM penstock.consumer_groups n
        WHERE n.queue_id = q.queue_id AND n.name = group_name
        LIMIT 1
    ) g
    WHERE q.name = queue_name;
    IF cardinality(lease_ids) > 0 THEN
        -- The commonest: claims of the group that pops, and all of each. ack_claims, which this agrees with, does all else.
        IF reader = ALL (group_ids) AND NOT gated AND coalesce(current_setting('penstock.lock_timeout', true), '') = '' THEN
            IF NOT (durable OR auto_ack) AND settings @> '{"durable_acks": false}' THEN
                PERFORM set_config('synchronous_commit', 'off', true);
            END IF;
            IF mode = 'shared' THEN
                IF cardinality(lease_ids) = 1 AND num_nonnulls(starts[1], stops[1]) = 0 THEN
                    DELETE FROM penstock.claims c
                    WHERE c.group_id = reader AND c.partition_id = partition_ids[1] AND c.lease_id = lease_ids[1]
                      AND c.whole AND c.due_at > clock_timestamp();
                    acked := CASE WHEN FOUND THEN '{t}'::boolean[] END;
                END IF;
                acked := coalesce(acked, penstock.ack_shared(group_ids, partition_ids, lease_ids, starts, stops));
            ELSIF cardinality(lease_ids) = 1 THEN
                acked := CASE WHEN penstock.end_claim(reader, partition_ids[1], lease_ids[1], stops[1]) THEN '{t}'::boolean[] END;
            ELSIF coalesce(cardinality(array_remove(stops, NULL)), 0) = 0 THEN
                acked := penstock.end_claims(reader, partition_ids, lease_ids);
                IF false = ANY (acked) THEN
                    SELECT
                        array_agg(n ORDER BY n),
                        penstock.ack_claims(
                            array_agg(group_ids[n] ORDER BY n), array_agg(partition_ids[n] ORDER BY n),
                            array_agg(lease_ids[n] ORDER BY n), NULL, NULL, durable OR auto_ack
                        )
                    INTO places, rest
                    FROM generate_subscripts(acked, 1) n
                    WHERE NOT acked[n];
                    FOR place IN 1 .. cardinality(places) LOOP
                        acked[places[place]] := rest[place];
                    END LOOP;
                END IF;
            END IF;
        END IF;
        IF acked IS NULL THEN
            acked := penstock.ack_claims(group_ids, partition_ids, lease_ids, starts, stops, durable OR auto_ack);
        END IF;
    ELSE
        acked := '{}';
        IF NOT (durable OR auto_ack) THEN
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
    END IF;

    IF mode IS NULL OR mode = 'external' THEN
        IF NOT first_use THEN
            IF lease_ids IS NOT NULL THEN
                RETURN NEXT;
            END IF;
            RETURN;
        END IF;
        IF mode IS NULL THEN
            IF first_use IS NULL THEN
                RAISE EXCEPTION 'queue "%" has no group "%"', queue_name, group_name
                    USING ERRCODE = 'undefined_object', HINT = 'Create it with create_group.';
            END IF;
            PERFORM penstock.ensure_group(queue_name, group_name);
            SELECT g.group_id, q.queue_id, q.settings || g.config, q.priorities, g.mode, g.gated
            INTO reader, queue, settings, priorities, mode, gated
            FROM penstock.queues q
            JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
            WHERE q.name = queue_name AND g.name = group_name;
        END IF;
        IF mode = 'external' THEN
            RAISE EXCEPTION 'group "%" of queue "%" is external: its reader keeps its own positions', group_name, queue_name
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Pop with another group.';
        END IF;
    END IF;

    IF gated THEN
        IF EXISTS (SELECT 1 FROM penstock.cancellations c WHERE c.group_id = reader AND NOT c.passed) THEN
            settings := settings || '{"has_cancelled": true}';
        END IF;
        -- Paused, held or at its limit, it has nothing to give; a probe is one message.
        SELECT w.* INTO gate FROM penstock.open_gate(reader, settings, mode = 'shared') w;
        max_partitions := least(max_partitions, gate.partitions);
        -- What a limit of the whole group allows is shared among the partitions: one that got nothing would have to wait.
        max_messages := least(max_messages, greatest(gate.messages / greatest(max_partitions, 1), least(gate.messages, 1)));
        patience := gate.patience;
        IF max_messages = 0 THEN
            IF lease_ids IS NOT NULL THEN
                RETURN NEXT;
            END IF;
            RETURN;
        END IF;
    END IF;

    -- The commonest pop: any partition of a queue without priorities. claim_partition and claim_range, which it agrees with,
    -- do what is out of the ordinary.
    IF partition_name IS NULL AND cardinality(priorities) = 1 AND passing IS NULL AND NOT (auto_ack OR gated)
    THEN
        IF max_partitions > 1 AND mode = 'shared' THEN
            -- What this call puts into the ready list is for others. Not the last value of the sequence: after a restore
            -- there may be entries above it.
            SELECT y.seq INTO latest FROM penstock.ready y
            WHERE y.group_id = reader AND y.priority = priorities[1] AND y.seq >= coalesce(lows[1], 0)
            ORDER BY y.seq DESC
            LIMIT 1;
        END IF;
        LOOP
            DELETE FROM penstock.ready y
            WHERE y.ctid = (
                SELECT y.ctid FROM penstock.ready y
                WHERE y.group_id = reader AND y.priority = priorities[1]
                  AND y.seq >= coalesce(entry.seq + 1, lows[1], 0) AND y.seq <= coalesce(latest, 9223372036854775807)
                ORDER BY y.seq
                LIMIT 1
                FOR UPDATE SKIP LOCKED
            )
            RETURNING y.* INTO entry;
            IF entry.seq IS NULL THEN
                -- Not where somebody else would wait for the end of this transaction.
                EXIT WHEN given > 0 OR looked OR durable OR cardinality(acked) > 0;
                looked := true;
                EXIT WHEN NOT penstock.look_again(reader);
                latest := NULL;
                CONTINUE;
            END IF;
            -- A new statement, hence a new snapshot: what the journal says now that the entry is ours. With it the segment that
            -- has the first message, if any has it.
            SELECT
                j.version, j.skipped, j.narrow_attempt, j.acked_at, j.first_error, j.last_error,
                j.ordinary AND s.ends IS NOT NULL AND s.base_offset + s.count > j.start, -- else retention has dropped it
                s.base_offset = j.start AND s.base_offset + s.count = least(j.start + max_messages, entry.hi),
                least(j.start + max_messages, entry.hi), s.bytes, false,
                CASE WHEN j.shared AND entry.lo IS NULL THEN (
                    SELECT n.base_offset + n.count FROM penstock.segments n
                    WHERE n.partition_id = entry.partition_id
                    ORDER BY n.base_offset DESC
                    LIMIT 1
                ) END,
                reader, entry.partition_id,
                (SELECT p.name FROM penstock.partitions p WHERE p.partition_id = entry.partition_id),
                gen_random_uuid(),
                clock_timestamp() + make_interval(secs => coalesce(lease_time, (settings ->> 'lease_time')::float8)),
                j.attempt, j.start, s.base_offset + s.count, 1, entry.seq, j.shared,
                s.base_offset, s.count, s.created_at, 0, s.run_counts, s.run_times,
                0, s.body, s.ends, 0, s.keys, s.key_ends, 0, s.headers, s.header_ends
            INTO
                newest, skipped, narrow_attempt, acked_at, first_error, last_error,
                ordinary,
                plain,
                stop, bytes, sliced,
                head,
                group_id, partition_id,
                partition_of,
                lease_id,
                lease_until,
                attempt, claimed_from, claimed_to, entry_level, entry_seq, shared,
                base_offset, count, created_at, run_skip, run_counts, run_times,
                body_start, body, ends, key_start, keys, key_ends, header_start, headers, header_ends
            FROM (
                SELECT
                    j.version, j.skipped, j.narrow_attempt, j.acked_at, j.first_error, j.last_error,
                    coalesce(entry.lo, CASE mode WHEN 'shared' THEN j.claimed_to ELSE j.committed END) AS start,
                    mode = 'shared' AS shared,
                    CASE mode WHEN 'shared' THEN 1 ELSE j.attempt + 1 END AS attempt,
                    CASE WHEN entry.lo IS NOT NULL THEN entry.attempt = 0 AND entry.hi - entry.lo <= max_messages
                         ELSE j.state = 'r' AND j.ready_seq = entry.seq AND j.narrow_to IS NULL
                             AND settings @> '{"delay": 0, "quiet_period": 0}' END AS ordinary
                FROM penstock.journal j
                WHERE j.group_id = reader AND j.partition_id = entry.partition_id
                ORDER BY j.version DESC
                LIMIT 1
            ) j
            CROSS JOIN LATERAL (
                SELECT
                    s.base_offset, s.count, s.created_at, s.bytes, s.run_counts, s.run_times,
                    coalesce(s.body, s.body_compressed) AS body, s.ends, s.keys, s.key_ends, s.headers, s.header_ends
                FROM penstock.segments s
                WHERE s.partition_id = entry.partition_id AND s.base_offset <= j.start
                ORDER BY s.base_offset DESC
                LIMIT 1
            ) s;
            IF ordinary AND NOT plain THEN
                joined := false;
                IF claimed_to < stop AND (shared OR bytes < max_bytes) THEN
                    IF head IS NULL THEN
                        SELECT s.base_offset + s.count INTO head FROM penstock.segments s
                        WHERE s.partition_id = entry.partition_id
                        ORDER BY s.base_offset DESC
                        LIMIT 1;
                    END IF;
                    IF head > claimed_to THEN
                        claimed_to := penstock.stop_after_bytes(entry.partition_id, claimed_from, least(stop, head), max_bytes);
                        sliced := true;
                    END IF;
                    ordinary := entry.lo IS NULL OR claimed_to = stop; -- else the rest goes back to the ready list
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
                        acked, group_id, partition_id, partition_of, lease_id, lease_until, attempt, claimed_from, claimed_to,
                        entry_level, entry_seq, shared, s.*
                    FROM penstock.joined_slice(entry.partition_id, claimed_from, claimed_to) s;
                    joined := FOUND;
                END IF;
                IF ordinary AND sliced AND NOT joined THEN
                    RETURN QUERY
                    SELECT
                        acked, group_id, partition_id, partition_of, lease_id, lease_until, attempt, claimed_from, claimed_to,
                        entry_level, entry_seq, shared, s.*
                    FROM penstock.segment_slices(entry.partition_id, claimed_from, claimed_to) s;
                    ordinary := FOUND; -- a purge may have committed since we looked what there is
                END IF;
            END IF;
            IF ordinary THEN
                IF shared THEN
                    IF entry.lo IS NULL THEN
                        stop := least(head, claimed_from + 8 * max_messages::bigint);
                        PERFORM penstock.carve_ranges(
                            entry, newest, skipped, acked_at, claimed_to, stop, max_messages, head > stop
                        );
                    END IF;
                    INSERT INTO penstock.claims (
                        group_id, partition_id, lo, hi, attempt, lease_id, due_at, consumer, first_error, last_error, alone,
                        ahead
                    ) VALUES (
                        group_id, partition_id, claimed_from, claimed_to, attempt, lease_id, lease_until, consumer,
                        entry.first_error, entry.last_error, claimed_to - claimed_from = 1, ahead
                    );
                ELSE
                    INSERT INTO penstock.journal (
                        group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt,
                        due_at, lease_id, consumer, acked_at, first_error, last_error, ahead
                    ) VALUES (
                        group_id, partition_id, newest + 1, 'c', claimed_from, claimed_to, skipped, attempt,
                        narrow_attempt, lease_until, lease_id, consumer, acked_at, first_error, last_error, ahead
                    );
                END IF;
                IF NOT sliced THEN
                    RETURN NEXT;
                END IF;
                IF max_partitions = 1 THEN
                    RETURN;
                END IF;
            ELSIF mode = 'shared' THEN
                RETURN QUERY SELECT acked, c.* FROM penstock.claim_range(
                    entry, 1, settings || CASE WHEN ahead THEN '{"ahead": true}' ELSE '{}' END::jsonb, max_messages, max_bytes, lease_time, consumer, auto_ack
                ) c;
            ELSE
                RETURN QUERY SELECT acked, c.* FROM penstock.claim_partition(
                    reader, entry.partition_id, NULL, 1, entry.seq,
                    settings || CASE WHEN ahead THEN '{"ahead": true}' ELSE '{}' END::jsonb, max_messages, max_bytes, lease_time, consumer, auto_ack
                ) c;
            END IF;
            IF ordinary OR FOUND THEN
                given := given + 1;
                EXIT WHEN given = max_partitions;
            ELSE
                vain := vain + 1; -- this entry had nothing to give, those behind it may
                EXIT WHEN vain = 1000;
            END IF;
        END LOOP;
        IF given = 0 AND lease_ids IS NOT NULL THEN
            partition_id := NULL;
            lease_id := NULL;
            claimed_from := NULL;
            claimed_to := NULL;
            body := NULL;
            RETURN NEXT;
        END IF;
        RETURN;
    END IF;

    IF ahead THEN
        settings := settings || '{"ahead": true}';
    END IF;
    IF partition_name IS NOT NULL THEN
        RETURN QUERY SELECT acked, c.* FROM penstock.claim_named(
            reader, queue, partition_name, mode, priorities, settings,
            max_messages, max_bytes, lease_time, consumer, auto_ack
        ) c;
        IF FOUND THEN
            IF gated THEN
                PERFORM penstock.note_probe(reader) WHERE gate.probing;
            END IF;
        ELSIF lease_ids IS NOT NULL THEN
            RETURN NEXT;
        END IF;
        RETURN;
    END IF;

    -- Highest priority first. One pop in eight begins at a lower level, so that nobody starves: the less often the lower it
    -- is, which is what the smaller of two random numbers does. What lies below comes next, then what lies above.
    wanted := max_partitions;
    levels := ARRAY[1];
    many := cardinality(priorities);
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
                    WHERE y.group_id = reader AND y.priority = priorities[level]
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
                IF mode = 'ordered' THEN
                    RETURN QUERY SELECT acked, c.* FROM penstock.claim_partition(
                        reader, entry.partition_id, NULL, level, entry.seq, settings,
                        max_messages, max_bytes, lease_time, consumer, auto_ack
                    ) c;
                    IF auto_ack THEN
                        -- Done with, it is ready again already; the next pop may have the rest of it.
                        passing := passing || entry.partition_id;
                    END IF;
                ELSE
                    RETURN QUERY SELECT acked, c.* FROM penstock.claim_range(
                        entry, level, settings, max_messages, max_bytes, lease_time, consumer, auto_ack
                    ) c;
                END IF;
                IF FOUND THEN
                    given := given + 1;
                    wanted := wanted - 1;
                ELSE
                    vain := vain + 1;
                END IF;
            END LOOP;
            EXIT WHEN wanted = 0 OR taken < asked OR vain >= patience;
        END LOOP;
        EXIT WHEN wanted = 0 OR vain >= patience;
    END LOOP;
    IF given > 0 THEN
        IF gated THEN
            PERFORM penstock.note_probe(reader) WHERE gate.probing;
        END IF;
    ELSIF lease_ids IS NOT NULL THEN
        RETURN NEXT;
    END IF;
END
$$;
