-- penstock.claim_range(entry, entry_level, settings, max_messages, max_bytes, lease_time, consumer, auto_ack)
--
-- Claims for a shared group: the range of a ready list entry, or, from the entry of a partition's frontier, the next
-- new messages. Whoever holds the frontier carves several ranges at once, takes one and puts the others and the
-- frontier back in the ready list, so that pops do not wait for one another's commit. Messages are read before they are
-- claimed: a message that cannot be read is not claimed. A group that conflates gets the newest message alone that was not
-- cancelled; older ones are done, also those that come back.
--
-- Parameters: entry - the entry, which the caller has just deleted; the others as in pop_claims.
-- Returns: the rows of pop_claims.
-- Calls: deliverable, append_state, trim_journal, carve_ranges, partition_span, newest_uncancelled, skip_cancelled, heed_cancelled,
-- stop_after_bytes, claim_limited, segment_slices, newest_state. Tables: partitions (read), ready, claims, skips (insert).
CREATE OR REPLACE FUNCTION penstock.claim_range(
    entry        penstock.ready,
    entry_level  integer,
    settings     jsonb,
    max_messages integer,
    max_bytes    bigint,
    lease_time   float8,
    consumer     text,
    auto_ack     boolean
)
RETURNS TABLE (
    group_id integer, partition_id bigint, partition_name text, lease_id uuid, lease_until timestamptz,
    attempt smallint, claimed_from bigint, claimed_to bigint, level integer, seq bigint, shared boolean,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_variable
DECLARE
    before   penstock.journal;
    given    record;
    start    bigint := entry.lo;
    stop     bigint := entry.hi;
    frontier bigint;
    carved   bigint;
    uncancelled bigint;
    newest   boolean := settings @> '{"conflate": true}';
    lease    uuid;
    until    timestamptz;
BEGIN
    IF entry.lo IS NULL THEN
        SELECT j.* INTO before FROM penstock.newest_state(entry.group_id, entry.partition_id) j;
        IF before.state IS DISTINCT FROM 'r' OR before.ready_seq <> entry.seq THEN
            RETURN; -- an old entry of a partition that has gone on since
        END IF;
        SELECT d.* INTO given FROM penstock.deliverable(entry.partition_id, before.claimed_to, settings) d;
        before.skipped := before.skipped + given.start_offset - before.claimed_to;
        IF given.stop_offset <= given.start_offset THEN
            PERFORM penstock.append_state(
                before, CASE WHEN given.due_at IS NULL THEN 'p' ELSE 't' END::"char", given.start_offset,
                due_at => coalesce(given.due_at, clock_timestamp() + interval '50 milliseconds')
            );
            PERFORM penstock.trim_journal(entry.group_id, entry.partition_id, before.version);
            RETURN;
        END IF;
        start := given.start_offset;
        IF newest THEN
            start := given.stop_offset - 1;
            IF settings ? 'has_cancelled' THEN
                -- What was cancelled is no newer state. Where all of it was, all of it is passed.
                start := coalesce(penstock.newest_uncancelled(
                    entry.group_id, entry.partition_id, given.start_offset, given.stop_offset
                ), start);
                given.stop_offset := CASE WHEN start < given.stop_offset - 1 THEN start + 1 ELSE given.stop_offset END;
            END IF;
        END IF;
        stop := least(given.stop_offset, start + max_messages);
        frontier := least(given.stop_offset, start + 8 * max_messages::bigint);
        PERFORM penstock.carve_ranges(
            entry, before.version, before.skipped, before.acked_at, stop, frontier, max_messages, given.head_offset > frontier
        );
    END IF;

    IF entry.lo IS NOT NULL THEN
        SELECT greatest(start, s.floor_offset) INTO start FROM penstock.partition_span(entry.partition_id) s;
        IF start > entry.lo THEN
            -- Again after a seek back: then it is the same messages, and they count once.
            INSERT INTO penstock.skips (group_id, partition_id, lo, hi)
            VALUES (entry.group_id, entry.partition_id, entry.lo, least(start, entry.hi))
            ON CONFLICT DO NOTHING;
        END IF;
        IF start >= stop THEN
            RETURN; -- retention has dropped it
        END IF;
        IF newest THEN
            SELECT j.* INTO before FROM penstock.newest_state(entry.group_id, entry.partition_id) j;
            SELECT d.* INTO given FROM penstock.deliverable(entry.partition_id, before.claimed_to, settings) d;
            IF before.claimed_to > stop OR given.stop_offset > greatest(given.start_offset, stop) THEN
                IF NOT settings ? 'has_cancelled' OR penstock.newest_uncancelled(
                    entry.group_id, entry.partition_id, stop, greatest(before.claimed_to, given.stop_offset)
                ) IS NOT NULL THEN
                    RETURN; -- something newer was claimed, or can be
                END IF;
            END IF;
            start := stop - 1;
        END IF;
    END IF;

    IF settings ? 'has_cancelled' THEN
        -- What lies behind one that was cancelled goes back in the ready list as it was.
        SELECT c.start_offset, c.stop_offset INTO uncancelled, carved
        FROM penstock.skip_cancelled(entry.group_id, entry.partition_id, start, stop) c;
        IF uncancelled > start THEN
            PERFORM penstock.heed_cancelled(entry.group_id, entry.partition_id, start, uncancelled);
            start := uncancelled;
        END IF;
        IF carved < stop THEN
            INSERT INTO penstock.ready (group_id, priority, seq, partition_id, lo, hi, attempt, first_error, last_error)
            VALUES (
                entry.group_id, entry.priority, nextval('penstock.ready_seq'), entry.partition_id, carved, stop,
                entry.attempt, entry.first_error, entry.last_error
            );
            stop := carved;
        END IF;
        IF start >= stop THEN
            RETURN; -- all of it was cancelled
        END IF;
    END IF;

    -- What is over the limits goes back in the ready list as it was. A range that failed is given out a message at a time, since
    -- nobody knows which of them failed.
    carved := penstock.stop_after_bytes(
        entry.partition_id, start, least(stop, start + CASE WHEN entry.attempt > 0 THEN 1 ELSE max_messages END), max_bytes
    );
    IF carved < stop THEN
        INSERT INTO penstock.ready (
            group_id, priority, seq, partition_id, lo, hi, attempt, first_error, last_error
        ) VALUES (
            entry.group_id, entry.priority, nextval('penstock.ready_seq'), entry.partition_id, carved, stop,
            entry.attempt, entry.first_error, entry.last_error
        );
        stop := carved;
    END IF;
    attempt := entry.attempt + 1;
    partition_name := (SELECT p.name FROM penstock.partitions p WHERE p.partition_id = entry.partition_id);
    IF NOT auto_ack THEN
        lease := gen_random_uuid();
        until := clock_timestamp() + make_interval(
            secs => coalesce(lease_time, (settings ->> 'lease_time')::float8)
        );
    END IF;
    IF settings ?| '{rate_limit,concurrency_limit}' THEN
        RETURN QUERY
        SELECT
            entry.group_id, entry.partition_id, partition_name, lease, until, attempt, c.claimed_from, c.claimed_to,
            entry_level, entry.seq, true, c.base_offset, c.count, c.created_at, c.run_skip, c.run_counts, c.run_times,
            c.body_start, c.body, c.ends, c.key_start, c.keys, c.key_ends, c.header_start, c.headers, c.header_ends
        FROM penstock.claim_limited(entry, start, stop, settings, lease, until, consumer) c;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT entry.group_id, entry.partition_id, partition_name, lease, until, attempt, start, stop, entry_level, entry.seq, true,
           s.*
    FROM penstock.segment_slices(entry.partition_id, start, stop) s;
    IF NOT FOUND THEN
        -- A purge has committed since we looked where the floor is.
        INSERT INTO penstock.skips (group_id, partition_id, lo, hi)
        VALUES (entry.group_id, entry.partition_id, start, stop)
        ON CONFLICT DO NOTHING;
    ELSIF NOT auto_ack THEN
        INSERT INTO penstock.claims (
            group_id, partition_id, lo, hi, attempt, lease_id, due_at, consumer, first_error, last_error, alone, ahead
        ) VALUES (
            entry.group_id, entry.partition_id, start, stop, attempt, lease, until, consumer,
            entry.first_error, entry.last_error, stop - start = 1, settings ? 'ahead'
        );
    END IF;
END
$$;
