-- penstock.require_items(group_ids, partition_ids, lease_ids, release_rest, done_claims, done_starts, done_stops, item_claims,
--                        item_offsets, outcomes, waits, errors, reasons, tracebacks)
--
-- Raises an error unless the arguments of settle_items say what to settle, and nothing twice.
--
-- Parameters: those of settle_items.
-- Returns: nothing; raises invalid_parameter_value.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_items(
    group_ids     integer[],
    partition_ids bigint[],
    lease_ids     uuid[],
    release_rest  boolean[],
    done_claims   integer[],
    done_starts   bigint[],
    done_stops    bigint[],
    item_claims   integer[],
    item_offsets  bigint[],
    outcomes      text[],
    waits         float8[],
    errors        text[],
    reasons       text[],
    tracebacks    text[]
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    claims integer := coalesce(cardinality(lease_ids), 0);
    items  integer := coalesce(cardinality(item_claims), 0);
    wrong  text;
BEGIN
    IF claims = 0 OR (claims = ALL (ARRAY[
        cardinality(group_ids), cardinality(partition_ids), coalesce(cardinality(release_rest), claims)
    ])) IS NOT TRUE OR (coalesce(cardinality(done_claims), 0) = ALL (ARRAY[
        coalesce(cardinality(done_starts), 0), coalesce(cardinality(done_stops), 0)
    ])) IS NOT TRUE OR (items = ALL (ARRAY[
        coalesce(cardinality(item_offsets), 0), coalesce(cardinality(outcomes), 0), coalesce(cardinality(waits), items),
        coalesce(cardinality(errors), items), coalesce(cardinality(reasons), items), coalesce(cardinality(tracebacks), items)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'give at least one claim, and arrays of one length for the claims, for what is done and for the outcomes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT format('claim %s is given twice', min(u.position)) INTO wrong
    FROM unnest(group_ids, partition_ids, lease_ids) WITH ORDINALITY u (group_id, partition_id, lease_id, position)
    GROUP BY u.group_id, u.partition_id, u.lease_id
    HAVING count(*) > 1
    LIMIT 1;
    wrong := coalesce(wrong, (
        SELECT format('the range from %s to %s of claim %s is not one', coalesce(d.start::text, 'null'),
                      coalesce(d.stop::text, 'null'), coalesce(d.claim::text, 'null'))
        FROM unnest(done_claims, done_starts, done_stops) d (claim, start, stop)
        WHERE (d.claim BETWEEN 1 AND claims AND coalesce(d.start >= 0 AND d.start < d.stop, d.start IS NULL AND d.stop IS NULL))
            IS NOT TRUE
        LIMIT 1
    ));
    IF wrong IS NULL AND items > 0 THEN
        SELECT CASE
            WHEN (i.claim BETWEEN 1 AND claims AND i.message_offset >= 0) IS NOT TRUE
                THEN format('outcome %s names no offset of a claim', i.position)
            WHEN (i.outcome IN ('done', 'failed', 'snoozed', 'dead', 'cancelled')) IS NOT TRUE
                THEN format('outcome %s is not done, failed, snoozed, dead or cancelled', i.position)
            WHEN i.wait IS NOT NULL AND (i.wait BETWEEN 0 AND 3155760000) IS NOT TRUE
                THEN format('wait is %s but must be from 0 to 3155760000 seconds', i.wait)
            WHEN i.outcome = 'snoozed' AND i.wait IS NULL
                THEN format('outcome %s is snoozed, and does not say for how long', i.position)
            ELSE format('offset %s of claim %s is settled twice', i.message_offset, i.claim)
        END INTO wrong
        FROM (
            SELECT i.*, count(*) OVER (PARTITION BY i.claim, i.message_offset) AS times
            FROM unnest(item_claims, item_offsets, outcomes, waits) WITH ORDINALITY
                i (claim, message_offset, outcome, wait, position)
        ) i
        WHERE (
            i.claim BETWEEN 1 AND claims AND i.message_offset >= 0
            AND i.outcome IN ('done', 'failed', 'snoozed', 'dead', 'cancelled')
            AND coalesce(i.wait BETWEEN 0 AND 3155760000, true) AND NOT (i.outcome = 'snoozed' AND i.wait IS NULL)
            AND i.times = 1 AND NOT EXISTS (
                SELECT 1 FROM unnest(done_claims, done_starts, done_stops) d (claim, start, stop)
                WHERE d.claim = i.claim AND i.message_offset >= d.start AND i.message_offset < d.stop
            )
        ) IS NOT TRUE
        ORDER BY i.position
        LIMIT 1;
    END IF;
    IF wrong IS NULL THEN
        SELECT format('nothing of claim %s is settled', n) INTO wrong
        FROM generate_series(1, claims) n
        WHERE NOT coalesce(release_rest[n], false) AND n <> ALL (coalesce(done_claims, '{}'))
          AND n <> ALL (coalesce(item_claims, '{}'))
        LIMIT 1;
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = 'invalid_parameter_value', HINT = 'Nothing was changed.';
    END IF;
END
$$;
