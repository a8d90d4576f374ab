-- penstock.list_breakers()
--
-- Lists the circuit breakers of groups that have failed. While one is open, nobody is handed messages of its group;
-- while it is half_open, one message at a time is handed out as a probe.
--
-- Parameters: none.
-- Returns: a row per group that has a breaker, open ones first.
-- Calls: policy_clock. Tables: breakers, consumer_groups, queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_breakers()
RETURNS TABLE (
    queue text, consumer_group text, state text, since timestamptz, opened_at timestamptz, open_until timestamptz,
    opened integer, consecutive_errors bigint, window_calls bigint, window_errors bigint, reason text, last_error text
)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        q.name, g.name,
        CASE
            WHEN b.state = 'closed' THEN 'closed'
            WHEN penstock.policy_clock() < b.open_until THEN 'open'
            ELSE 'half_open'
        END,
        b.since, CASE WHEN b.state = 'open' THEN b.opened_at END, b.open_until, b.opened, b.consecutive_errors,
        b.window_calls, b.window_errors, b.reason, b.last_error
    FROM penstock.breakers b
    JOIN penstock.consumer_groups g ON g.group_id = b.group_id
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    ORDER BY b.state DESC, q.name, g.name
$$;
