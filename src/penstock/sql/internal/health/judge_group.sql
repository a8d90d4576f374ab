-- penstock.judge_group(target_group, by_consumer, good, bad, in_a_row, error)
--
-- Counts what consumers of a group report, and opens or closes its circuit breaker: it opens after so many errors in a
-- row, or where more than a share of what was handled within a window failed, and holds the group. When the pause is
-- over one message is handed out. If that succeeds the breaker closes; if it fails, the next pause is twice as long.
--
-- As long as another consumer of the group is well, it is the consumer that fails and not the group: that one's own
-- breaker stops it, and the group goes on. One that succeeds reports that only now and then, and one that fails at once,
-- so who has reported no error is taken to be well, unless it was not seen for 90 seconds.
--
-- What was taken before the group was held still ends while it is held, and is no probe: it is not judged. If the clock
-- went back, the pause begins again at the new time.
--
-- Parameters: by_consumer - who reports; good, bad - the messages that succeeded and failed since the last report; in_a_row - the errors since the
-- last success of this consumer; error - the last one.
-- Returns: nothing.
-- Calls: policy_clock, breaker_settings, hold_group, unhold_group. Tables: breakers (insert, update), group_consumers,
-- consumer_health (read).
CREATE OR REPLACE FUNCTION penstock.judge_group(
    target_group integer, by_consumer text, good bigint, bad bigint, in_a_row bigint, error text
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    now_at  timestamptz := penstock.policy_clock();
    allowed record;
    breaker penstock.breakers;
    why     text;
BEGIN
    SELECT b.* INTO breaker FROM penstock.breakers b WHERE b.group_id = target_group FOR UPDATE;
    IF NOT FOUND THEN
        -- Most groups never fail, and have no row.
        IF bad = 0 THEN
            RETURN;
        END IF;
        INSERT INTO penstock.breakers (group_id, since, window_began) VALUES (target_group, now_at, now_at)
        ON CONFLICT DO NOTHING;
        SELECT b.* INTO breaker FROM penstock.breakers b WHERE b.group_id = target_group FOR UPDATE;
    END IF;
    SELECT s.* INTO allowed FROM penstock.breaker_settings(target_group) s;
    IF breaker.state = 'open' THEN
        IF now_at < breaker.since THEN
            breaker.since := now_at;
            breaker.open_until := now_at + make_interval(secs => breaker.pause);
            PERFORM penstock.hold_group(target_group, breaker.open_until, true);
        ELSIF now_at >= breaker.open_until AND good > 0 THEN
            breaker.state := 'closed';
            breaker.since := now_at;
            breaker.opened := 0;
            breaker.open_until := NULL;
            breaker.pause := NULL;
            breaker.reason := NULL;
            breaker.consecutive_errors := in_a_row;
            breaker.window_began := now_at;
            breaker.window_calls := 0;
            breaker.window_errors := 0;
            PERFORM penstock.unhold_group(target_group);
        ELSIF now_at >= breaker.open_until AND bad > 0 THEN
            why := 'the probe failed';
        ELSE
            RETURN;
        END IF;
    ELSIF good = 0 AND bad = 0 AND (allowed.errors = 0 OR breaker.consecutive_errors < allowed.errors) OR bad = 0 AND breaker.consecutive_errors = 0 AND allowed.rate = 0 THEN
        RETURN;
    ELSE
        breaker.consecutive_errors := CASE WHEN good > 0 THEN in_a_row ELSE breaker.consecutive_errors + bad END;
        IF now_at NOT BETWEEN breaker.window_began
            AND breaker.window_began + make_interval(secs => allowed.window_seconds)
        THEN
            breaker.window_began := now_at;
            breaker.window_calls := 0;
            breaker.window_errors := 0;
        END IF;
        breaker.window_calls := breaker.window_calls + good + bad;
        breaker.window_errors := breaker.window_errors + bad;
        IF allowed.errors > 0 AND breaker.consecutive_errors >= allowed.errors THEN
            why := format('%s errors in a row', breaker.consecutive_errors);
        ELSIF allowed.rate > 0 AND breaker.window_calls >= 20
            AND breaker.window_errors >= allowed.rate * breaker.window_calls
        THEN
            why := format('%s of %s messages failed', breaker.window_errors, breaker.window_calls);
        END IF;
        IF why IS NOT NULL AND EXISTS (
            SELECT 1 FROM penstock.group_consumers c
            JOIN penstock.consumer_health h ON h.consumer_id = c.consumer_id
            WHERE c.group_id = target_group AND c.consumer_id <> by_consumer AND c.consecutive_errors = 0
              AND h.status <> 'gone' AND now_at - h.last_seen <= interval '90 seconds'
        ) THEN
            why := NULL;
        END IF;
    END IF;
    IF why IS NOT NULL THEN
        breaker.opened := breaker.opened + 1;
        breaker.pause := least(
            allowed.pause * power(2, least(breaker.opened - 1, 30)), greatest(allowed.pause, allowed.pause_max)
        );
        breaker.opened_at := CASE WHEN breaker.opened = 1 THEN now_at ELSE breaker.opened_at END;
        breaker.state := 'open';
        breaker.since := now_at;
        breaker.open_until := now_at + make_interval(secs => breaker.pause);
        breaker.reason := why;
        PERFORM penstock.hold_group(target_group, breaker.open_until, true);
    END IF;
    UPDATE penstock.breakers b
    SET state = breaker.state, since = breaker.since, consecutive_errors = breaker.consecutive_errors,
        window_began = breaker.window_began, window_calls = breaker.window_calls,
        window_errors = breaker.window_errors, opened = breaker.opened, opened_at = breaker.opened_at,
        open_until = breaker.open_until, pause = breaker.pause, reason = breaker.reason,
        last_error = coalesce(left(error, 2000), b.last_error)
    WHERE b.group_id = target_group;
END
$$;
