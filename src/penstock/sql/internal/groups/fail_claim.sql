-- penstock.fail_claim(before, failed_offset, error, reason, wait, traceback, begun)
--
-- Ends a claim that failed, by a nack or because its lease expired. If the failing message is known, only that one is
-- affected: it is delivered again alone, or becomes a dead letter if its attempts are used up; for the messages
-- behind it, which were not reached, this delivery does not count. If it is not known, the delivery counts for all
-- messages of the claim, and they are delivered one by one from now on, so that only the failing one becomes a dead
-- letter.
--
-- Parameters: before - the claim, whose row the caller has locked and read again; failed_offset - the message that
-- failed, if known (those before it are done); error - the handler's error; reason - by which dead letters are
-- grouped; wait - seconds until the next attempt, null for the backoff; traceback - for the dead letter;
-- begun - false where a single message need not be the failing one, because it was claimed ahead.
-- Returns: whether there is a new dead letter.
-- Calls: append_state, bury. Tables: queues, consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.fail_claim(
    before penstock.journal, failed_offset bigint, error text, reason text, wait float8,
    traceback text DEFAULT NULL, begun boolean DEFAULT true
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    settings jsonb := (
        SELECT q.settings || g.config
        FROM penstock.consumer_groups g JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE g.group_id = before.group_id
    );
    several  boolean := before.claimed_to - before.committed > 1;
    failing  bigint := coalesce(failed_offset, CASE WHEN begun AND NOT several THEN before.committed END);
    -- The failing one comes alone until it is past, and so do all that may be the failing one.
    narrow_to      bigint := greatest(coalesce(failing + 1, before.claimed_to), before.narrow_to);
    narrow_attempt smallint := CASE WHEN failing IS NULL THEN before.attempt ELSE before.narrow_attempt END;
    pause    float8;
    next_offset bigint;
BEGIN
    IF failing IS NOT NULL AND before.attempt >= (settings ->> 'max_attempts')::integer THEN
        PERFORM penstock.bury(before, failing, error, reason, traceback);
        next_offset := failing + 1;
        IF narrow_to > next_offset THEN
            PERFORM penstock.append_state(before, 'r', next_offset, narrow_attempt, narrow_attempt, narrow_to);
        ELSE
            PERFORM penstock.append_state(before, 'r', next_offset);
        END IF;
        RETURN true;
    END IF;
    pause := coalesce(wait, least(
        (settings ->> 'backoff_max')::float8,
        (settings ->> 'backoff_initial')::float8
            * power((settings ->> 'backoff_factor')::float8, least(before.attempt - 1, 100))
    ));
    PERFORM penstock.append_state(
        before,
        CASE WHEN pause > 0 THEN 't' ELSE 'r' END::"char",
        coalesce(failing, before.committed),
        before.attempt,
        narrow_attempt,
        narrow_to,
        CASE WHEN pause > 0 THEN clock_timestamp() + make_interval(secs => pause) END,
        coalesce(before.first_error, error),
        error
    );
    RETURN false;
END
$$;
