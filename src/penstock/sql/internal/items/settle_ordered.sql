-- penstock.settle_ordered(before, release, done, whole, offsets, outcomes, waits, errors, reasons, tracebacks)
--
-- Settles items of one claim of an ordered group: some are done, in order, and then one may fail or be snoozed, which ends the
-- claim. What is left of a claim that does not end stays under its lease. What came before cannot be settled again: a call
-- that is repeated changes nothing.
--
-- Parameters: before - the claim, whose row the caller has locked and read again; release - whether to give the rest back,
-- without counting an attempt; done - the offsets that are done; whole - all of them are; the others - parallel arrays, an
-- entry per outcome, see settle_items.
-- Returns: state - 'settled', or 'repeated' if some of it was settled before; answers - what became of each outcome.
-- Calls: bury, fail_claim, append_state, newest_segment, free_slots. Tables: journal (insert, delete), consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.settle_ordered(
    before     penstock.journal,
    release    boolean,
    done       int8multirange,
    whole      boolean,
    offsets    bigint[],
    outcomes   text[],
    waits      float8[],
    errors     text[],
    reasons    text[],
    tracebacks text[],
    OUT state text, OUT answers text[]
)
LANGUAGE plpgsql
AS $$
DECLARE
    first      bigint := before.committed;
    stop       bigint;
    last       integer;
    narrow     boolean;
    next_state "char";
BEGIN
    -- The one that failed or is snoozed comes last; those that are dead count as done.
    FOR i IN 1 .. coalesce(cardinality(offsets), 0) LOOP
        IF outcomes[i] IN ('failed', 'snoozed') THEN
            IF last IS NOT NULL THEN
                RAISE EXCEPTION 'offsets % and % both failed or are snoozed, and in an ordered group the first one ends the claim',
                    offsets[last], offsets[i]
                    USING ERRCODE = 'invalid_parameter_value';
            END IF;
            last := i;
        ELSE
            done := done + int8multirange(int8range(offsets[i], offsets[i] + 1));
        END IF;
    END LOOP;
    stop := CASE WHEN whole THEN before.claimed_to ELSE coalesce(upper(done), first) END;
    IF least(lower(done), offsets[last]) < first THEN
        state := 'repeated';
        RETURN;
    END IF;
    IF stop > before.claimed_to OR offsets[last] >= before.claimed_to THEN
        RAISE EXCEPTION 'offset % is not in the claim, which has % to %',
            greatest(stop - 1, offsets[last]), first, before.claimed_to - 1
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT whole AND done <> int8multirange(int8range(first, stop)) OR offsets[last] <> stop THEN
        RAISE EXCEPTION 'the items of an ordered group are settled in order, from offset % on, without a gap', first
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    state := 'settled';
    FOR i IN 1 .. coalesce(cardinality(offsets), 0) LOOP
        answers[i] := outcomes[i];
        IF outcomes[i] = 'dead' THEN
            PERFORM penstock.bury(before, offsets[i], errors[i], coalesce(reasons[i], errors[i], 'dead letter'), tracebacks[i]);
            answers[i] := 'dead letter';
        END IF;
    END LOOP;
    IF outcomes[last] = 'failed' THEN
        before.acked_at := CASE WHEN stop > first THEN clock_timestamp() ELSE before.acked_at END;
        answers[last] := CASE WHEN penstock.fail_claim(
            before, stop, errors[last], coalesce(reasons[last], errors[last], 'nack'), waits[last], tracebacks[last]
        ) THEN 'dead letter' ELSE 'retry' END;
        RETURN;
    END IF;
    IF stop > first THEN
        before.acked_at := clock_timestamp();
        before.first_error := NULL;
        before.last_error := NULL;
    END IF;
    IF last IS NULL AND stop < before.claimed_to AND NOT release THEN
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
            due_at, lease_id, consumer, claimed_at, acked_at, first_error, last_error
        ) VALUES (
            before.group_id, before.partition_id, before.version + 1, 'c', stop, before.claimed_to, before.skipped,
            before.attempt,
            CASE WHEN before.narrow_to > stop THEN before.narrow_attempt ELSE 0 END,
            CASE WHEN before.narrow_to > stop THEN before.narrow_to END,
            before.due_at, before.lease_id, before.consumer, coalesce(before.claimed_at, before.at),
            before.acked_at, before.first_error, before.last_error
        );
        PERFORM penstock.free_slots(before.lease_id, int8multirange(int8range(stop, before.claimed_to)))
        FROM penstock.consumer_groups g
        WHERE g.group_id = before.group_id AND g.gated;
    ELSE
        next_state := CASE
            WHEN waits[last] > 0 THEN 't'
            WHEN stop < before.claimed_to OR stop < (
                SELECT s.head_offset FROM penstock.newest_segment(before.partition_id) s
            ) THEN 'r'
            -- With nothing left the ready list entry would only lead to an empty look: park it at once.
            ELSE 'p'
        END;
        narrow := coalesce(before.narrow_to > stop, false);
        PERFORM penstock.append_state(
            before, next_state, stop,
            -- This delivery does not count for what comes next.
            CASE WHEN stop = first THEN before.attempt - 1 WHEN narrow THEN before.narrow_attempt ELSE 0 END::smallint,
            CASE WHEN narrow THEN before.narrow_attempt ELSE 0 END::smallint,
            CASE WHEN narrow THEN before.narrow_to END,
            CASE next_state WHEN 't' THEN clock_timestamp() + make_interval(secs => waits[last])
                            WHEN 'p' THEN clock_timestamp() + interval '50 milliseconds' END,
            before.first_error,
            -- It tells this wait from that for a delay, which another setting ends: see end_waits.
            CASE WHEN next_state = 't' THEN 'snoozed' ELSE before.last_error END
        );
    END IF;
    IF before.version % 32 < 2 THEN
        -- As end_claim does it.
        DELETE FROM penstock.journal j
        WHERE j.ctid = ANY (ARRAY(
            SELECT o.ctid FROM penstock.journal o
            WHERE o.group_id = before.group_id AND o.partition_id = before.partition_id
              AND o.version BETWEEN before.version - 80 AND before.version - 16
            FOR UPDATE SKIP LOCKED
        ));
    END IF;
END
$$;
