-- penstock.claim_partition(target_group, target, partition_of, entry_level, entry_seq, settings, max_messages, max_bytes,
--                          lease_time, consumer, auto_ack)
--
-- Claims one partition whose ready list entry the caller has just deleted. That, and the journal, which names this
-- entry, makes the caller the only one who may append the next journal row; the key would refuse a second one.
-- Messages are read before anything is claimed: what cannot be read is not claimed. A group that conflates gets the newest
-- message alone that was not cancelled, and those before it are done when it is claimed.
--
-- Parameters: those of pop_claims, for one partition.
-- Returns: the rows of pop_claims; none when there is nothing to give: then the partition is parked, to be looked at
-- once more in a moment, or waits for a delay, a quiet period or a limit by key.
-- Calls: deliverable, newest_uncancelled, skip_cancelled, heed_cancelled, stop_after_bytes, pass_limits, free_slots, await_key,
-- segment_slices, trim_journal, newest_state. Tables: partitions (read), journal, ready (insert).
CREATE OR REPLACE FUNCTION penstock.claim_partition(
    target_group integer,
    target       bigint,
    partition_of text,
    entry_level  integer,
    entry_seq    bigint,
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
    before   record;
    head     bigint;
    first    bigint;
    start    bigint;
    stop     bigint;
    blocked  "char";
    awaited  text;
    uncancelled bigint;
    passing  boolean := false;
    retry_at timestamptz;
    narrow   boolean;
    lease    uuid;
    until    timestamptz;
    given    boolean := false;
BEGIN
    SELECT j.* INTO before FROM penstock.newest_state(target_group, target) j;
    IF before.state IS DISTINCT FROM 'r' OR before.ready_seq <> entry_seq THEN
        RETURN; -- an old entry of a partition that has gone on since
    END IF;
    SELECT d.start_offset, d.stop_offset, d.head_offset, d.due_at INTO first, stop, head, retry_at
    FROM penstock.deliverable(target, before.committed, settings) d;
    start := first;
    IF stop > start AND settings @> '{"conflate": true}' THEN
        start := stop - 1;
        IF settings ? 'has_cancelled' THEN
            -- What was cancelled is no newer state. Where all of it was, all of it is passed.
            start := coalesce(penstock.newest_uncancelled(target_group, target, first, stop), start);
            stop := CASE WHEN start < stop - 1 THEN start + 1 ELSE stop END;
        END IF;
    END IF;
    IF stop > start AND settings ? 'has_cancelled' THEN
        SELECT c.start_offset, c.stop_offset INTO uncancelled, stop
        FROM penstock.skip_cancelled(target_group, target, start, stop) c;
        passing := uncancelled > start;
        start := uncancelled;
    END IF;
    IF start > before.committed THEN
        IF settings ? 'has_cancelled' THEN
            PERFORM penstock.heed_cancelled(target_group, target, before.committed, start);
        END IF;
        -- The message that these are about was dropped by retention or cancelled, or there is a newer one.
        before.attempt := CASE WHEN start > first AND before.narrow_to > start THEN before.narrow_attempt ELSE 0 END;
        before.first_error := NULL;
        before.last_error := NULL;
    END IF;
    IF passing THEN
        -- What was cancelled is done, also if nothing is given, and was not skipped.
        before.skipped := before.skipped - (start - first);
        first := start;
    END IF;

    IF stop > start THEN
        narrow := before.narrow_to > start;
        stop := least(stop, start + CASE WHEN narrow THEN 1 ELSE max_messages END);
        stop := penstock.stop_after_bytes(target, start, stop, max_bytes);
        IF NOT auto_ack THEN
            lease := gen_random_uuid();
            until := clock_timestamp() + make_interval(
                secs => coalesce(lease_time, (settings ->> 'lease_time')::float8)
            );
        END IF;
        IF settings ?| '{rate_limit,concurrency_limit}' THEN
            SELECT p.hi, p.blocked, p.key INTO stop, blocked, awaited
            FROM penstock.pass_limits(target_group, target, start, stop, settings, false, lease) p;
        END IF;
    END IF;
    IF stop > start AND blocked IS NULL THEN
        attempt := before.attempt + 1;
        partition_name := coalesce(
            partition_of, (SELECT p.name FROM penstock.partitions p WHERE p.partition_id = target)
        );
        RETURN QUERY
        SELECT target_group, target, partition_name, lease, until, attempt, start, stop, entry_level, entry_seq, false, s.*
        FROM penstock.segment_slices(target, start, stop) s;
        given := FOUND; -- a purge may have committed since we looked what there is
    END IF;

    IF NOT given THEN
        IF blocked IS NOT NULL THEN
            -- Whoever waits for a key is woken long before; this is for what nobody has thought of.
            retry_at := clock_timestamp() + CASE blocked
                WHEN 'b' THEN interval '50 milliseconds' ELSE interval '10 minutes' END;
        ELSIF lease IS NOT NULL THEN
            PERFORM penstock.free_slots(lease);
        END IF;
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
            due_at, acked_at, first_error, last_error
        ) VALUES (
            target_group, target, before.version + 1, CASE WHEN retry_at IS NULL THEN 'p' ELSE 't' END,
            first, first, before.skipped + first - before.committed,
            before.attempt, before.narrow_attempt, before.narrow_to,
            coalesce(retry_at, clock_timestamp() + interval '50 milliseconds'),
            before.acked_at, before.first_error, before.last_error
        );
        IF blocked IN ('r', 'c') THEN
            PERFORM penstock.await_key(
                target_group, blocked, awaited, target, before.version + 1, NULL, clock_timestamp()
            );
        END IF;
        PERFORM penstock.trim_journal(target_group, target, before.version);
    ELSIF auto_ack THEN
        -- What failed with this message and is not past still comes alone.
        narrow := coalesce(before.narrow_to > stop, false);
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
            ready_seq, consumer, acked_at
        ) VALUES (
            target_group, target, before.version + 1, 'r', stop, stop, before.skipped + first - before.committed,
            CASE WHEN narrow THEN before.narrow_attempt ELSE 0 END,
            CASE WHEN narrow THEN before.narrow_attempt ELSE 0 END,
            CASE WHEN narrow THEN before.narrow_to END,
            nextval('penstock.ready_seq'), consumer, clock_timestamp()
        );
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
        SELECT target_group, p.priority, currval('penstock.ready_seq'), target
        FROM penstock.partitions p WHERE p.partition_id = target;
        PERFORM penstock.trim_journal(target_group, target, before.version);
    ELSE
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
            due_at, lease_id, consumer, acked_at, first_error, last_error, ahead
        ) VALUES (
            target_group, target, before.version + 1, 'c', start, stop, before.skipped + first - before.committed,
            attempt, before.narrow_attempt, before.narrow_to,
            until, lease, consumer, before.acked_at, before.first_error, before.last_error, settings ? 'ahead'
        );
    END IF;
END
$$;
