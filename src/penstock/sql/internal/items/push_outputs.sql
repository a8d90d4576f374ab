-- penstock.push_outputs(settled, run_segments, run_claims, run_counts, queue_names, partition_names, counts, bodies, ends, keys,
--                       key_ends, headers, header_ends, delays, due_ats, dedupe_ids)
--
-- Pushes the outputs of claims that were settled, and leaves out those of others.
--
-- Parameters: settled - whether each claim was settled; run_segments, run_claims and run_counts - of which claims the messages of
-- a segment are: parallel arrays, in the order of the messages; the others as in push_with_options.
-- Returns: nothing.
-- Calls: may_push, keep_messages, push_segment, push_segments, push_with_options. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.push_outputs(
    settled         boolean[],
    run_segments    integer[],
    run_claims      integer[],
    run_counts      integer[],
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
    dedupe_ids      text[]
)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT penstock.may_push() THEN
        RAISE EXCEPTION 'permission denied: outputs need the producer role'
            USING ERRCODE = 'insufficient_privilege', HINT = 'Grant penstock_producer to the worker''s user.';
    END IF;
    -- Most outputs are one segment of one claim.
    IF (run_segments = '{1}' AND run_counts = counts AND cardinality(run_claims) = 1 AND counts[1] > 0
        AND run_claims[1] BETWEEN 1 AND cardinality(settled)) IS NOT TRUE
    AND (
        SELECT array_agg(coalesce(r.messages, 0) ORDER BY n) = counts
        FROM generate_series(1, cardinality(counts)) n
        LEFT JOIN (
            SELECT r.segment, sum(r.count)::integer AS messages
            FROM unnest(run_segments, run_claims, run_counts) r (segment, claim, count)
            WHERE r.count > 0 AND r.claim BETWEEN 1 AND cardinality(settled)
            GROUP BY r.segment
        ) r ON r.segment = n
    ) IS NOT TRUE THEN
        RAISE EXCEPTION 'run_segments, run_claims and run_counts must tell of which claim each output is'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF array_position(settled, false) IS NOT NULL
        AND false = ANY (ARRAY(SELECT settled[r.claim] FROM unnest(run_claims) r (claim)))
    THEN
        SELECT array_agg(m.dedupe_id ORDER BY m.position) FILTER (WHERE m.settled) INTO dedupe_ids
        FROM (
            SELECT d.position, d.dedupe_id, settled[r.claim] AS settled
            FROM (
                SELECT
                    r.claim, sum(r.count) OVER run - r.count + 1 AS first, sum(r.count) OVER run AS last
                FROM unnest(run_segments, run_claims, run_counts) WITH ORDINALITY r (segment, claim, count, position)
                WINDOW run AS (ORDER BY r.segment, r.position)
            ) r
            JOIN unnest(dedupe_ids) WITH ORDINALITY d (dedupe_id, position) ON d.position BETWEEN r.first AND r.last
        ) m;
        SELECT
            array_agg(s.queue_name ORDER BY s.segment), array_agg(s.partition_name ORDER BY s.segment),
            array_agg(k.count ORDER BY s.segment), array_agg(k.body ORDER BY s.segment),
            array_agg(k.ends ORDER BY s.segment),
            array_agg(k.keys ORDER BY s.segment), array_agg(k.key_ends ORDER BY s.segment),
            array_agg(k.headers ORDER BY s.segment), array_agg(k.header_ends ORDER BY s.segment),
            array_agg(s.delay ORDER BY s.segment), array_agg(s.due_at ORDER BY s.segment)
        INTO
            queue_names, partition_names, counts, bodies, ends, keys, key_ends, headers, header_ends, delays, due_ats
        FROM unnest(
            queue_names, partition_names, counts, bodies, ends, keys, key_ends, headers, header_ends, delays, due_ats
        ) WITH ORDINALITY s (
            queue_name, partition_name, count, body, ends, keys, key_ends, headers, header_ends, delay, due_at, segment
        )
        LEFT JOIN (
            SELECT r.segment, array_agg(p) AS positions
            FROM (
                SELECT
                    r.segment, r.claim, sum(r.count) OVER run - r.count AS first, sum(r.count) OVER run - 1 AS last
                FROM unnest(run_segments, run_claims, run_counts) WITH ORDINALITY r (segment, claim, count, position)
                WINDOW run AS (PARTITION BY r.segment ORDER BY r.position)
            ) r
            CROSS JOIN LATERAL generate_series(r.first::integer, r.last::integer) p
            WHERE NOT settled[r.claim]
            GROUP BY r.segment
        ) d ON d.segment = s.segment
        CROSS JOIN LATERAL penstock.keep_messages(
            s.count, s.body, s.ends, s.keys, s.key_ends, s.headers, s.header_ends, d.positions
        ) k
        WHERE k.count > 0;
        IF counts IS NULL THEN
            RETURN;
        END IF;
    END IF;
    IF num_nulls(delays, due_ats, dedupe_ids) < 3 THEN
        PERFORM penstock.push_with_options(
            queue_names, partition_names, counts, bodies, ends, keys, key_ends, headers, header_ends, delays, due_ats, dedupe_ids
        );
    ELSIF cardinality(counts) = 1 THEN
        PERFORM penstock.push_segment(
            queue_names[1], partition_names[1], counts[1], bodies[1], ends[1], keys[1], key_ends[1], headers[1], header_ends[1]
        );
    ELSE
        PERFORM penstock.push_segments(
            queue_names, partition_names, counts, bodies, ends, keys, key_ends, headers, header_ends
        );
    END IF;
END
$$;
