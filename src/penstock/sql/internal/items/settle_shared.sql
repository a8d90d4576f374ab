-- penstock.settle_shared(reader, target, lease, release, done, whole, offsets, outcomes, waits, errors, reasons, tracebacks)
--
-- Settles items of one claim of a shared group, any of them, each in its own way. What is left of the claim stays under its
-- lease, or is given back without counting an attempt. What came before cannot be settled again: a call that is repeated
-- changes nothing.
--
-- Parameters: the ids of group, partition and lease, whose rows the caller has locked; the others as in settle_ordered.
-- Returns: state - 'settled', 'repeated' if some of it is not in the claim any more, null when the lease is not live;
-- answers - what became of each outcome.
-- Calls: bury, fail_range, offer_range, free_slots. Tables: claims (read, delete, insert), consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.settle_shared(
    reader     integer,
    target     bigint,
    lease      uuid,
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
    held    int8multirange;
    given   int8multirange;
    piece   penstock.claims;
    item    penstock.claims;
    copy    penstock.journal;
    left_over int8range;
BEGIN
    held := (
        SELECT range_agg(int8range(c.lo, c.hi)) FROM penstock.claims c
        WHERE c.group_id = reader AND c.partition_id = target AND c.lease_id = lease AND c.due_at > clock_timestamp()
    );
    IF held IS NULL THEN
        RETURN;
    END IF;
    given := coalesce((SELECT range_agg(int8range(u.o, u.o + 1)) FROM unnest(offsets) u (o)), '{}')
        + CASE WHEN whole THEN held ELSE done END;
    IF NOT given <@ held THEN
        state := 'repeated';
        RETURN;
    END IF;
    state := 'settled';
    FOR piece IN
        DELETE FROM penstock.claims c
        WHERE c.group_id = reader AND c.partition_id = target AND c.lease_id = lease
          AND (release OR int8range(c.lo, c.hi) && given)
        RETURNING c.*
    LOOP
        FOR left_over IN SELECT unnest(int8multirange(int8range(piece.lo, piece.hi)) - given) LOOP
            IF release THEN
                PERFORM penstock.offer_range(
                    piece, lower(left_over), upper(left_over), (piece.attempt - 1)::smallint,
                    piece.first_error, piece.last_error
                );
            ELSE
                INSERT INTO penstock.claims (
                    group_id, partition_id, lo, hi, attempt, lease_id, due_at, consumer, claimed_at, first_error, last_error,
                    whole
                ) VALUES (
                    piece.group_id, piece.partition_id, lower(left_over), upper(left_over), piece.attempt, piece.lease_id,
                    piece.due_at, piece.consumer, piece.claimed_at, piece.first_error, piece.last_error, false
                );
            END IF;
        END LOOP;
        item := piece;
        FOR i IN 1 .. coalesce(cardinality(offsets), 0) LOOP
            CONTINUE WHEN offsets[i] NOT BETWEEN piece.lo AND piece.hi - 1;
            item.lo := offsets[i];
            item.hi := offsets[i] + 1;
            CASE outcomes[i]
                WHEN 'failed' THEN
                    answers[i] := CASE WHEN penstock.fail_range(
                        item, item.lo, errors[i], coalesce(reasons[i], errors[i], 'nack'), waits[i], tracebacks[i]
                    ) THEN 'dead letter' ELSE 'retry' END;
                WHEN 'snoozed' THEN
                    answers[i] := 'snoozed';
                    IF waits[i] > 0 THEN
                        INSERT INTO penstock.claims (
                            group_id, partition_id, lo, hi, attempt, due_at, first_error, last_error
                        ) VALUES (
                            item.group_id, item.partition_id, item.lo, item.hi, item.attempt - 1,
                            clock_timestamp() + make_interval(secs => waits[i]), item.first_error, item.last_error
                        );
                    ELSE
                        PERFORM penstock.offer_range(
                            item, item.lo, item.hi, (item.attempt - 1)::smallint, item.first_error, item.last_error
                        );
                    END IF;
                WHEN 'dead' THEN
                    answers[i] := 'dead letter';
                    copy.group_id := item.group_id;
                    copy.partition_id := item.partition_id;
                    copy.attempt := item.attempt;
                    copy.consumer := item.consumer;
                    copy.first_error := item.first_error;
                    PERFORM penstock.bury(
                        copy, item.lo, errors[i], coalesce(reasons[i], errors[i], 'dead letter'), tracebacks[i]
                    );
                ELSE
                    answers[i] := outcomes[i];
            END CASE;
        END LOOP;
    END LOOP;
    PERFORM penstock.free_slots(lease, CASE WHEN release THEN '{}' ELSE held - given END)
    FROM penstock.consumer_groups g
    WHERE g.group_id = reader AND g.gated;
END
$$;
