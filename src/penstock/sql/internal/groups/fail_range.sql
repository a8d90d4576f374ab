-- penstock.fail_range(held, failed_offset, error, reason, wait, traceback, begun)
--
-- Ends a range of a shared group that failed, by a nack or because its lease expired. If the failing message is
-- known, only that one is affected: it is delivered again alone, or becomes a dead letter if its attempts are used
-- up; for the messages behind it, which were not reached, this delivery does not count. If it is not known, the
-- delivery counts for all messages of the range. The range stays one row, from which pops take one message at a time,
-- so that only the failing one becomes a dead letter.
--
-- Parameters: held - the range, whose row the caller has deleted; the others as in fail_claim.
-- Returns: whether there is a new dead letter.
-- Calls: bury, offer_range. Tables: queues, consumer_groups (read), claims (insert).
CREATE OR REPLACE FUNCTION penstock.fail_range(
    held penstock.claims, failed_offset bigint, error text, reason text, wait float8,
    traceback text DEFAULT NULL, begun boolean DEFAULT true
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    settings jsonb := (
        SELECT q.settings || g.config
        FROM penstock.consumer_groups g JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE g.group_id = held.group_id
    );
    -- One message that is left of a claim of several may have been reached or not.
    failing  bigint := coalesce(failed_offset, CASE WHEN begun AND held.alone THEN held.lo END);
    first    bigint := coalesce(failing, held.lo);
    past     bigint := coalesce(failing + 1, held.hi);
    pause    float8;
    copy     penstock.journal;
BEGIN
    -- Those before the failing one are done.
    IF past < held.hi THEN
        PERFORM penstock.offer_range(held, past, held.hi, (held.attempt - 1)::smallint, NULL, NULL);
    END IF;
    IF failing IS NOT NULL AND held.attempt >= (settings ->> 'max_attempts')::integer THEN
        copy.group_id := held.group_id;
        copy.partition_id := held.partition_id;
        copy.attempt := held.attempt;
        copy.consumer := held.consumer;
        copy.first_error := held.first_error;
        PERFORM penstock.bury(copy, failing, error, reason, traceback);
        RETURN true;
    END IF;
    pause := coalesce(wait, least(
        (settings ->> 'backoff_max')::float8,
        (settings ->> 'backoff_initial')::float8
            * power((settings ->> 'backoff_factor')::float8, least(held.attempt - 1, 100))
    ));
    IF pause > 0 THEN
        INSERT INTO penstock.claims (group_id, partition_id, lo, hi, attempt, due_at, first_error, last_error)
        VALUES (
            held.group_id, held.partition_id, first, past, held.attempt,
            clock_timestamp() + make_interval(secs => pause), coalesce(held.first_error, error), error
        );
    ELSE
        PERFORM penstock.offer_range(held, first, past, held.attempt, coalesce(held.first_error, error), error);
    END IF;
    RETURN false;
END
$$;
