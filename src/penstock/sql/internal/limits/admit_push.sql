-- penstock.admit_push(targets, counts)
--
-- Refuses a push to a queue whose pushes are paused, or that has had all that its rate allows. Callers call it under the
-- locks of the partitions, and not for a push that is repeated. Pushes to a queue with a rate wait for one another.
--
-- Parameters: targets - a partition id per segment; counts - its messages.
-- Returns: nothing; raises 55PS2 (paused), 55PS3 (over the rate; the detail is after how many seconds to try again), or
-- invalid_parameter_value for a push that has more messages than the queue ever takes at once.
-- Calls: policy_clock, rate_of, tokens_left. Tables: partitions, queues (read), push_rates (lock, insert, update).
CREATE OR REPLACE FUNCTION penstock.admit_push(targets bigint[], counts integer[])
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    pushed   record;
    now_here timestamptz;
    had_to   timestamptz;
    pause    float8;
BEGIN
    FOR pushed IN
        SELECT q.queue_id, q.name, q.config, r.spacing, r.burst, p.messages
        FROM (
            SELECT p.queue_id, sum(s.count) AS messages
            FROM unnest(targets, counts) s (target, count)
            JOIN penstock.partitions p ON p.partition_id = s.target
            GROUP BY p.queue_id
        ) p
        JOIN penstock.queues q ON q.queue_id = p.queue_id
        CROSS JOIN LATERAL penstock.rate_of(q.config, 'push_') r
        WHERE q.push_gated AND p.messages > 0
        -- All callers take the locks in the same order.
        ORDER BY q.queue_id
    LOOP
        IF pushed.config @> '{"push_paused": true}' THEN
            RAISE EXCEPTION 'pushes to queue "%" are paused', pushed.name
                USING ERRCODE = '55PS2', HINT = format('"penstock resume %s" lets them go on.', pushed.name);
        END IF;
        IF pushed.messages > pushed.burst THEN
            RAISE EXCEPTION 'a push of % messages is more than queue "%" ever takes at once, which is %',
                pushed.messages, pushed.name, pushed.burst
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Push fewer at a time, or raise its push_rate_burst.';
        END IF;
        INSERT INTO penstock.push_rates AS r (queue_id, full_at) VALUES (pushed.queue_id, '-infinity')
        ON CONFLICT ON CONSTRAINT push_rates_pkey DO NOTHING;
        SELECT r.full_at INTO had_to FROM penstock.push_rates r WHERE r.queue_id = pushed.queue_id FOR NO KEY UPDATE;
        -- After the wait for the lock.
        now_here := penstock.policy_clock();
        IF had_to > now_here + pushed.burst * pushed.spacing THEN
            -- The clock has gone back, or the rate has changed. A refusal could not note that, so this push is the last one
            -- for now.
            had_to := now_here + (pushed.burst - pushed.messages) * pushed.spacing;
        END IF;
        IF penstock.tokens_left(had_to, now_here, pushed.spacing, pushed.burst) < pushed.messages THEN
            pause := extract(epoch FROM had_to + (pushed.messages - pushed.burst) * pushed.spacing - now_here);
            RAISE EXCEPTION 'queue "%" takes % messages in % seconds, and has had them', pushed.name,
                pushed.config ->> 'push_rate_limit', coalesce(pushed.config ->> 'push_rate_period', '1')
                USING ERRCODE = '55PS3', DETAIL = pause, HINT = format('Push it again in %s seconds.', round(pause::numeric, 3));
        END IF;
        UPDATE penstock.push_rates r
        SET full_at = greatest(had_to, now_here) + pushed.messages * pushed.spacing
        WHERE r.queue_id = pushed.queue_id;
    END LOOP;
END
$$;
