-- penstock.settle_items(group_ids, partition_ids, lease_ids, release_rest, done_claims, done_starts, done_stops, item_claims,
--                       item_offsets, outcomes, waits, errors, reasons, tracebacks, run_segments, run_claims, run_counts,
--                       queue_names, partition_names, counts, bodies, ends, keys, key_ends, headers, header_ends, delays, due_ats,
--                       dedupe_ids, noted_claims, noted_offsets, result_claims, result_offsets, result_states, result_values,
--                       result_errors, keep_fors, durable)
--
-- Settles items of any number of claims, each item in its own way, and pushes their outputs, in one transaction: what workers
-- call. A claim whose lease is not live changes nothing, and none of its outputs is pushed. That is what keeps a repeated
-- call, or a second delivery of an item, from pushing outputs twice.
--
-- Locks, in this order: claims of ordered groups, claims of shared groups, then those of push_segments. Nobody who holds a
-- partition waits for a claim, so two calls whose outputs go to the other's queue do not deadlock.
--
-- Parameters, all but the first four null where there are none:
-- group_ids, partition_ids, lease_ids, release_rest - parallel arrays, an entry per claim, each claim once; release_rest -
-- whether to give back what is not settled, without counting an attempt; null: it stays under its lease.
-- done_claims, done_starts, done_stops - an entry per range of offsets that are done: the number of the claim, from 1, its
-- first offset, and the one after its last; both null for all that is left of the claim.
-- item_claims, item_offsets, outcomes, waits, errors, reasons, tracebacks - an entry per item with another outcome: 'failed'
-- counts an attempt, as nack_claim; 'snoozed' comes back after `wait` seconds and counts none; 'dead' becomes a dead letter;
-- 'done'; 'cancelled' is done, and was not handled, because somebody cancelled it. waits - null for the group's backoff.
-- run_segments, run_claims, run_counts - of which claims the messages of a segment of outputs are: the number of the segment,
-- of the claim, and how many messages. queue_names to dedupe_ids - the segments, as in push_with_options.
-- noted_claims, noted_offsets - items that may have notes or steps: those of items that are done or dead are deleted.
-- result_claims, result_offsets, result_states, result_values, result_errors, keep_fors - an entry per item of which somebody
-- wants to know the result: 'returned' (JSON), 'returned bytes', 'raised', 'discarded' or 'cancelled', with what, and for how many seconds to keep
-- it. Of an item that comes back nothing is kept.
-- durable - as in ack_claims; with outputs or results it has no effect.
-- In an ordered group items are settled in order. One that failed or is snoozed comes last and ends the claim.
-- Returns: one row. settled - for each claim 'settled', null when the lease is not live, or 'repeated' when the lease is live
-- and some of the items were settled before: then nothing of the claim changed. answers - for each entry of `outcomes`:
-- 'retry', 'dead letter', 'snoozed', 'done' or 'cancelled', null where the claim was not settled. must_last - whether it has to wait
-- for the disk.
-- Calls: require_items, require_results, require_read_committed, use_lock_timeout, ack_claims, lock_newest, lock_leases, newest_state,
-- settle_ordered, settle_shared, heed_cancelled, forget_items, keep_results, push_outputs. Tables: consumer_groups, queues, claims (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.settle_items(
    group_ids       integer[],
    partition_ids   bigint[],
    lease_ids       uuid[],
    release_rest    boolean[]     DEFAULT NULL,
    done_claims     integer[]     DEFAULT NULL,
    done_starts     bigint[]      DEFAULT NULL,
    done_stops      bigint[]      DEFAULT NULL,
    item_claims     integer[]     DEFAULT NULL,
    item_offsets    bigint[]      DEFAULT NULL,
    outcomes        text[]        DEFAULT NULL,
    waits           float8[]      DEFAULT NULL,
    errors          text[]        DEFAULT NULL,
    reasons         text[]        DEFAULT NULL,
    tracebacks      text[]        DEFAULT NULL,
    run_segments    integer[]     DEFAULT NULL,
    run_claims      integer[]     DEFAULT NULL,
    run_counts      integer[]     DEFAULT NULL,
    queue_names     text[]        DEFAULT NULL,
    partition_names text[]        DEFAULT NULL,
    counts          integer[]     DEFAULT NULL,
    bodies          bytea[]       DEFAULT NULL,
    ends            bytea[]       DEFAULT NULL,
    keys            bytea[]       DEFAULT NULL,
    key_ends        bytea[]       DEFAULT NULL,
    headers         bytea[]       DEFAULT NULL,
    header_ends     bytea[]       DEFAULT NULL,
    delays          float8[]      DEFAULT NULL,
    due_ats         timestamptz[] DEFAULT NULL,
    dedupe_ids      text[]        DEFAULT NULL,
    noted_claims    integer[]     DEFAULT NULL,
    noted_offsets   bigint[]      DEFAULT NULL,
    result_claims   integer[]     DEFAULT NULL,
    result_offsets  bigint[]      DEFAULT NULL,
    result_states   text[]        DEFAULT NULL,
    result_values   bytea[]       DEFAULT NULL,
    result_errors   text[]        DEFAULT NULL,
    keep_fors       float8[]      DEFAULT NULL,
    durable         boolean       DEFAULT true
)
RETURNS TABLE (settled text[], answers text[], must_last boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    claim   record;
    outcome record;
    plain   boolean;
    acked   boolean[];
    held    int8multirange[];
    wrong   record;
    open_claims  integer[];
    open_offsets bigint[];
BEGIN
    -- All of every claim is done: what most calls are about.
    plain := item_claims IS NULL AND cardinality(lease_ids) > 0 AND num_nonnulls(VARIADIC done_starts || done_stops) = 0
        AND (cardinality(lease_ids) = ALL (ARRAY[cardinality(group_ids), cardinality(partition_ids), cardinality(done_claims)]))
        AND CASE WHEN cardinality(lease_ids) = 1 THEN done_claims = '{1}' ELSE
            ARRAY(SELECT DISTINCT d.claim FROM unnest(done_claims) d (claim) ORDER BY 1)
            = ARRAY(SELECT generate_series(1, cardinality(lease_ids)))
        END;
    -- One range of one claim needs no call to be told right.
    plain := coalesce(plain, false);
    IF NOT plain AND (
        item_claims IS NULL AND done_claims = '{1}' AND done_starts[1] >= 0 AND done_starts[1] < done_stops[1]
        AND (1 = ALL (ARRAY[
            cardinality(lease_ids), cardinality(group_ids), cardinality(partition_ids), cardinality(done_starts),
            cardinality(done_stops), coalesce(cardinality(release_rest), 1)
        ]))
    ) IS NOT TRUE THEN
        PERFORM penstock.require_items(
            group_ids, partition_ids, lease_ids, release_rest, done_claims, done_starts, done_stops, item_claims, item_offsets,
            outcomes, waits, errors, reasons, tracebacks
        );
    END IF;
    IF cardinality(result_claims) > 0 THEN
        PERFORM penstock.require_results(cardinality(lease_ids), result_claims, result_offsets, result_states, keep_fors);
    END IF;
    PERFORM penstock.require_read_committed('settle');
    PERFORM penstock.use_lock_timeout();
    settled := array_fill(NULL::text, ARRAY[cardinality(lease_ids)]);
    answers := array_fill(NULL::text, ARRAY[coalesce(cardinality(outcomes), 0)]);
    must_last := durable OR cardinality(counts) > 0 OR cardinality(result_claims) > 0 OR EXISTS (
        SELECT 1
        FROM penstock.consumer_groups g
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE g.group_id = ANY (group_ids)
          AND coalesce(g.config -> 'durable_acks', q.settings -> 'durable_acks') IS DISTINCT FROM 'false'
    );
    IF NOT must_last THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;

    IF cardinality(noted_claims) > 0 OR cardinality(result_claims) > 0 THEN
        -- Looked at before anything is settled; a lease never gets more than it has.
        held := ARRAY(
            SELECT CASE WHEN g.mode = 'shared' THEN (
                SELECT range_agg(int8range(c.lo, c.hi)) FROM penstock.claims c
                WHERE c.group_id = u.group_id AND c.partition_id = u.partition_id AND c.lease_id = u.lease_id
            ) ELSE (
                SELECT int8multirange(int8range(j.committed, j.claimed_to))
                FROM penstock.newest_state(u.group_id, u.partition_id) j
                WHERE j.lease_id = u.lease_id
            ) END
            FROM unnest(group_ids, partition_ids, lease_ids) WITH ORDINALITY u (group_id, partition_id, lease_id, position)
            LEFT JOIN penstock.consumer_groups g ON g.group_id = u.group_id
            ORDER BY u.position
        );
    END IF;
    IF plain THEN
        acked := penstock.ack_claims(group_ids, partition_ids, lease_ids);
        settled := CASE WHEN cardinality(acked) = 1 THEN ARRAY[CASE WHEN acked[1] THEN 'settled' END] ELSE ARRAY(
            SELECT CASE WHEN a.acked THEN 'settled' END FROM unnest(acked) WITH ORDINALITY a (acked, position) ORDER BY a.position
        ) END;
    ELSE
        -- Ordered groups first, as in ack_mixed: all callers take the locks in the same order.
        PERFORM penstock.lock_newest(array_agg(u.group_id), array_agg(u.partition_id))
        FROM unnest(group_ids, partition_ids) u (group_id, partition_id)
        JOIN penstock.consumer_groups g ON g.group_id = u.group_id AND g.mode = 'ordered'
        HAVING count(*) > 0;
        PERFORM penstock.lock_leases(array_agg(u.group_id), array_agg(u.partition_id), array_agg(u.lease_id))
        FROM unnest(group_ids, partition_ids, lease_ids) u (group_id, partition_id, lease_id)
        JOIN penstock.consumer_groups g ON g.group_id = u.group_id AND g.mode = 'shared'
        HAVING count(*) > 0;
        -- A new statement, hence a new snapshot: whoever held the locks before us may have ended a claim.
        FOR claim IN
            SELECT
                u.*, g.mode, j AS before,
                coalesce(d.done, '{}') AS done, coalesce(d.whole, false) AS whole,
                i.positions, i.offsets, i.outcomes, i.waits, i.errors, i.reasons, i.tracebacks
            FROM unnest(group_ids, partition_ids, lease_ids, release_rest) WITH ORDINALITY
                u (group_id, partition_id, lease_id, release, position)
            JOIN penstock.consumer_groups g ON g.group_id = u.group_id
            LEFT JOIN LATERAL penstock.newest_state(u.group_id, u.partition_id) j ON g.mode = 'ordered'
            LEFT JOIN (
                SELECT d.claim, range_agg(int8range(d.start, d.stop)) AS done, bool_or(d.start IS NULL) AS whole
                FROM unnest(done_claims, done_starts, done_stops) d (claim, start, stop)
                GROUP BY d.claim
            ) d ON d.claim = u.position
            LEFT JOIN (
                SELECT
                    i.claim, array_agg(i.position) AS positions, array_agg(i.message_offset) AS offsets,
                    array_agg(i.outcome) AS outcomes, array_agg(i.wait) AS waits, array_agg(i.error) AS errors,
                    array_agg(i.reason) AS reasons, array_agg(i.traceback) AS tracebacks
                FROM unnest(item_claims, item_offsets, outcomes, waits, errors, reasons, tracebacks) WITH ORDINALITY
                    i (claim, message_offset, outcome, wait, error, reason, traceback, position)
                GROUP BY i.claim
            ) i ON i.claim = u.position
            ORDER BY u.position
        LOOP
            IF claim.mode = 'shared' THEN
                SELECT s.* INTO outcome
                FROM penstock.settle_shared(
                    claim.group_id, claim.partition_id, claim.lease_id, coalesce(claim.release, false), claim.done, claim.whole,
                    claim.offsets, claim.outcomes, claim.waits, claim.errors, claim.reasons, claim.tracebacks
                ) s;
            ELSIF (claim.before).state = 'c' AND (claim.before).lease_id = claim.lease_id
                AND (claim.before).due_at > clock_timestamp()
            THEN
                SELECT s.* INTO outcome
                FROM penstock.settle_ordered(
                    claim.before, coalesce(claim.release, false), claim.done, claim.whole,
                    claim.offsets, claim.outcomes, claim.waits, claim.errors, claim.reasons, claim.tracebacks
                ) s;
            ELSE
                CONTINUE;
            END IF;
            settled[claim.position] := outcome.state;
            FOR i IN 1 .. coalesce(cardinality(outcome.answers), 0) LOOP
                answers[claim.positions[i]] := outcome.answers[i];
            END LOOP;
        END LOOP;
    END IF;
    IF 'cancelled' = ANY (outcomes) THEN
        PERFORM penstock.heed_cancelled(group_ids[i.claim], partition_ids[i.claim], i.message_offset, i.message_offset + 1)
        FROM unnest(item_claims, item_offsets, answers) i (claim, message_offset, answer)
        WHERE i.answer = 'cancelled';
    END IF;
    IF cardinality(noted_claims) > 0 OR cardinality(result_claims) > 0 THEN
        -- Only of a claim that was settled: of what was settled before, a repeated call says the same again.
        SELECT i.* INTO wrong
        FROM (
            SELECT n.claim, n.message_offset FROM unnest(noted_claims, noted_offsets) n (claim, message_offset)
            UNION ALL
            SELECT r.claim, r.message_offset FROM unnest(result_claims, result_offsets) r (claim, message_offset)
        ) i
        WHERE (settled[i.claim] IS DISTINCT FROM 'settled' AND i.claim BETWEEN 1 AND cardinality(settled)
               OR i.message_offset <@ held[i.claim]) IS NOT TRUE
        LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'a note or result is of offset % of claim %, which the claim does not have',
                coalesce(wrong.message_offset::text, 'null'), coalesce(wrong.claim::text, 'null')
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Nothing was changed.';
        END IF;
        -- Of items that come back, notes stay and results are not known yet.
        SELECT array_agg(i.claim), array_agg(i.message_offset) INTO open_claims, open_offsets
        FROM unnest(item_claims, item_offsets, answers) i (claim, message_offset, answer)
        WHERE i.answer IN ('retry', 'snoozed');
        PERFORM penstock.forget_items(
            array_agg(group_ids[n.claim]), array_agg(partition_ids[n.claim]), array_agg(n.message_offset)
        )
        FROM unnest(noted_claims, noted_offsets) n (claim, message_offset)
        WHERE settled[n.claim] = 'settled' AND NOT EXISTS (
            SELECT 1 FROM unnest(open_claims, open_offsets) o (claim, message_offset)
            WHERE o.claim = n.claim AND o.message_offset = n.message_offset
        )
        HAVING count(*) > 0;
        PERFORM penstock.keep_results(
            array_agg(group_ids[r.claim]), array_agg(partition_ids[r.claim]), array_agg(r.message_offset),
            array_agg(r.state), array_agg(r.value), array_agg(r.error), array_agg(r.keep_for)
        )
        FROM unnest(result_claims, result_offsets, result_states, result_values, result_errors, keep_fors)
            r (claim, message_offset, state, value, error, keep_for)
        WHERE settled[r.claim] = 'settled' AND NOT EXISTS (
            SELECT 1 FROM unnest(open_claims, open_offsets) o (claim, message_offset)
            WHERE o.claim = r.claim AND o.message_offset = r.message_offset
        )
        HAVING count(*) > 0;
    END IF;
    IF cardinality(counts) > 0 THEN
        IF NOT plain THEN
            acked := ARRAY(
                SELECT s.state IS NOT DISTINCT FROM 'settled' FROM unnest(settled) WITH ORDINALITY s (state, n) ORDER BY s.n
            );
        END IF;
        PERFORM penstock.push_outputs(
            acked, run_segments, run_claims, run_counts, queue_names, partition_names, counts, bodies, ends, keys, key_ends,
            headers, header_ends, delays, due_ats, dedupe_ids
        );
    END IF;
    RETURN NEXT;
END
$$;
