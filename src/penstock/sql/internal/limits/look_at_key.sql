-- penstock.look_at_key(limited)
--
-- Wakes as many of those who wait for a key as its limit allows now, and decides when to look again. The sweep calls it.
--
-- Parameters: limited - the row of the key, which the caller has locked.
-- Returns: how many were woken; of a limit for the whole group, its consumers count as one.
-- Calls: policy_clock, rate_of, tokens_left, next_token_in, drop_dead_slots, wake_waiters, send_hint. Tables: consumer_groups, slots, waiters,
-- ready (read), limited_keys (update).
CREATE OR REPLACE FUNCTION penstock.look_at_key(limited penstock.limited_keys)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    now_here timestamptz := penstock.policy_clock();
    settings jsonb := (SELECT g.config FROM penstock.consumer_groups g WHERE g.group_id = limited.group_id);
    spacing  interval;
    burst    integer;
    allowed  integer := 1000;
    woken    integer := 0;
    pause    interval;
BEGIN
    IF limited.kind = 'r' THEN
        SELECT r.spacing, r.burst INTO spacing, burst FROM penstock.rate_of(settings) r;
        IF spacing IS NOT NULL THEN
            allowed := penstock.tokens_left(limited.full_at, now_here, spacing, burst);
        END IF;
    ELSIF settings ->> 'concurrency_limit' IS NOT NULL THEN
        PERFORM penstock.drop_dead_slots(limited.group_id, limited.key);
        allowed := (settings ->> 'concurrency_limit')::integer - coalesce((
            SELECT sum(s.messages) FROM penstock.slots s WHERE s.group_id = limited.group_id AND s.key = limited.key
        ), 0);
    END IF;
    woken := penstock.wake_waiters(limited.group_id, limited.kind, limited.key, allowed);
    IF EXISTS (
        SELECT 1 FROM penstock.waiters w
        WHERE w.group_id = limited.group_id AND w.kind = limited.kind AND w.key = limited.key
    ) OR limited.key = '' AND allowed <= 0 AND EXISTS (SELECT 1 FROM penstock.ready y WHERE y.group_id = limited.group_id) THEN
        pause := CASE
            WHEN woken < allowed THEN interval '50 milliseconds' -- somebody is just changing those who wait
            WHEN limited.kind = 'r' THEN penstock.next_token_in(limited.full_at, now_here, spacing, burst, woken)
            ELSE least(
                greatest(2 * (limited.look_at - limited.looked_at), interval '50 milliseconds'), interval '10 seconds'
            )
        END;
    END IF;
    UPDATE penstock.limited_keys k
    -- From what is in the future beyond any burst it counts from now on, after the clock has gone back.
    SET look_at = clock_timestamp() + pause, looked_at = clock_timestamp(),
        full_at = CASE WHEN k.full_at IS NOT NULL THEN least(k.full_at, now_here + burst * spacing) END
    WHERE k.group_id = limited.group_id AND k.kind = limited.kind AND k.key = limited.key;
    IF limited.key = '' AND allowed > 0 AND EXISTS (SELECT 1 FROM penstock.ready y WHERE y.group_id = limited.group_id) THEN
        woken := greatest(woken, 1);
    END IF;
    IF woken > 0 THEN
        PERFORM penstock.send_hint(limited.group_id);
    END IF;
    RETURN woken;
END
$$;
