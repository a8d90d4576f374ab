-- penstock.claim_partition(target_group, target, partition_of, entry_level, entry_seq, settings, max_messages, max_bytes,
--                          lease_time, consumer, auto_ack)
--
-- Claims one partition whose ready list entry the caller has just deleted. That, and the journal, which names this
-- entry, makes the caller the only one who may append the next journal row; the key would refuse a second one.
-- Messages are read before anything is claimed: what cannot be read is not claimed.
--
-- Parameters: those of pop_claims, for one partition.
-- Returns: the rows of pop_claims; none when there is nothing to give: then the partition is parked, to be looked at
-- once more in a moment, or waits for a delay or a quiet period to pass.
-- Calls: deliverable, stop_after_bytes, segment_slices, trim_journal, newest_state. Tables: partitions (read), journal,
-- ready (insert).
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
    start    bigint;
    stop     bigint;
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
    SELECT d.start_offset, d.stop_offset, d.head_offset, d.due_at INTO start, stop, head, retry_at
    FROM penstock.deliverable(target, before.committed, settings) d;
    IF start > before.committed THEN
        -- Retention dropped the message that these are about.
        before.attempt := 0;
        before.first_error := NULL;
        before.last_error := NULL;
    END IF;

    IF stop > start THEN
        narrow := before.narrow_to > start;
        stop := least(stop, start + CASE WHEN narrow THEN 1 ELSE max_messages END);
        stop := penstock.stop_after_bytes(target, start, stop, max_bytes);
        attempt := before.attempt + 1;
        partition_name := coalesce(
            partition_of, (SELECT p.name FROM penstock.partitions p WHERE p.partition_id = target)
        );
        IF NOT auto_ack THEN
            lease := gen_random_uuid();
            until := clock_timestamp() + make_interval(
                secs => coalesce(lease_time, (settings ->> 'lease_time')::float8)
            );
        END IF;
        RETURN QUERY
        SELECT target_group, target, partition_name, lease, until, attempt, start, stop, entry_level, entry_seq, false, s.*
        FROM penstock.segment_slices(target, start, stop) s;
        given := FOUND; -- a purge may have committed since we looked what there is
    END IF;

    IF NOT given THEN
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
            due_at, acked_at, first_error, last_error
        ) VALUES (
            target_group, target, before.version + 1, CASE WHEN retry_at IS NULL THEN 'p' ELSE 't' END,
            start, start, before.skipped + start - before.committed,
            before.attempt, before.narrow_attempt, before.narrow_to,
            coalesce(retry_at, clock_timestamp() + interval '50 milliseconds'),
            before.acked_at, before.first_error, before.last_error
        );
        PERFORM penstock.trim_journal(target_group, target, before.version);
    ELSIF auto_ack THEN
        -- What failed with this message and is not past still comes alone.
        narrow := coalesce(before.narrow_to > stop, false);
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
            ready_seq, consumer, acked_at
        ) VALUES (
            target_group, target, before.version + 1, 'r', stop, stop, before.skipped + start - before.committed,
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
            due_at, lease_id, consumer, acked_at, first_error, last_error
        ) VALUES (
            target_group, target, before.version + 1, 'c', start, stop, before.skipped + start - before.committed,
            attempt, before.narrow_attempt, before.narrow_to,
            until, lease, consumer, before.acked_at, before.first_error, before.last_error
        );
    END IF;
END
$$;
