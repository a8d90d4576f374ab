-- penstock.health_facts()
--
-- Returns all that `penstock status` judges, as of one moment: what waits for each group as it was last sampled,
-- breakers, consumers and the groups they consume for, groups that are paused, groups with a window in Valkey and how
-- many claims consumers hold beside it, the states of flows, schedules that fail or are due, queues that nobody reads,
-- dead letters (up to 1000 of a group), and the settings of checks. It reads a row per group, consumer, flow, schedule
-- and queue, however many partitions and messages there are, and of groups with a window their claims.
--
-- Parameters: none.
-- Returns: a JSON object.
-- Calls: policy_clock, list_work, list_breakers, list_consumers, list_checks, claims_of_consumers. Tables:
-- group_consumers, consumer_groups, queues, partitions, segments, dead_letters, flows, flow_states, schedules,
-- warm_leases (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.health_facts()
RETURNS jsonb
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_build_object(
        'now', n.at,
        'work', (SELECT coalesce(jsonb_agg(jsonb_build_object(
            'queue', w.queue, 'group', w.consumer_group, 'flow', w.flow, 'flow_type', w.flow_type, 'action', w.action,
            'action_class', w.action_class, 'lag', w.lag, 'cold', w.cold, 'ready', w.ready, 'claimed', w.claimed,
            'waiting', w.waiting, 'oldest_at', w.oldest_at, 'oldest_age', w.oldest_age, 'oldest_id', w.oldest_id,
            'oldest_did', w.oldest_did, 'sampled_at', w.sampled_at, 'times', w.times, 'lags', w.lags, 'depths', w.depths
        )), '[]') FROM penstock.list_work() w),
        'breakers', (SELECT coalesce(jsonb_agg(jsonb_build_object(
            'queue', b.queue, 'group', b.consumer_group, 'state', b.state, 'since', b.since, 'opened_at', b.opened_at,
            'open_until', b.open_until, 'opened', b.opened, 'consecutive_errors', b.consecutive_errors,
            'window_calls', b.window_calls, 'window_errors', b.window_errors, 'reason', b.reason,
            'last_error', b.last_error
        )), '[]') FROM penstock.list_breakers() b),
        'consumers', (SELECT coalesce(jsonb_agg(to_jsonb(c)), '[]') FROM penstock.list_consumers() c),
        'consuming', (
            SELECT coalesce(jsonb_agg(jsonb_build_array(q.name, g.name, c.consumer_id)), '[]')
            FROM penstock.group_consumers c
            JOIN penstock.consumer_groups g ON g.group_id = c.group_id
            JOIN penstock.queues q ON q.queue_id = g.queue_id
        ),
        'external', (
            SELECT coalesce(jsonb_agg(jsonb_build_array(q.name, g.name)), '[]')
            FROM penstock.consumer_groups g
            JOIN penstock.queues q ON q.queue_id = g.queue_id
            WHERE g.mode = 'external'
        ),
        'paused', (
            SELECT coalesce(jsonb_agg(jsonb_build_array(q.name, g.name)), '[]')
            FROM penstock.consumer_groups g
            JOIN penstock.queues q ON q.queue_id = g.queue_id
            WHERE g.flow_paused OR g.config @> '{"paused": true}'
        ),
        'windows', (
            SELECT coalesce(jsonb_agg(jsonb_build_array(q.name, g.name, penstock.claims_of_consumers(g.group_id))), '[]')
            FROM penstock.warm_leases w
            JOIN penstock.consumer_groups g ON g.group_id = w.group_id
            JOIN penstock.queues q ON q.queue_id = g.queue_id
        ),
        'flows', (
            SELECT coalesce(jsonb_agg(jsonb_build_object(
                'name', f.name, 'failures', s.failures, 'error', s.error, 'since', s.since,
                'state', CASE
                    WHEN s.state NOT IN ('stopped', 'finished', 'failed')
                        AND s.heartbeat_at < clock_timestamp() - interval '15 seconds' THEN 'lost'
                    ELSE s.state
                END
            )), '[]')
            FROM penstock.flows f
            JOIN penstock.flow_states s ON s.flow_name = f.name
            WHERE NOT f.paused
        ),
        'schedules', (
            SELECT coalesce(jsonb_agg(jsonb_build_object(
                'name', s.name, 'queue', s.queue, 'due_at', s.next_at, 'error', s.error, 'failed_at', s.failed_at
            ) ORDER BY s.name), '[]')
            FROM penstock.schedules s
            WHERE NOT s.paused AND (s.error IS NOT NULL OR s.next_at <= n.at)
        ),
        'orphans', (
            SELECT coalesce(jsonb_agg(jsonb_build_array(q.name, q.created_at)), '[]')
            FROM penstock.queues q
            WHERE NOT EXISTS (SELECT 1 FROM penstock.consumer_groups g WHERE g.queue_id = q.queue_id)
              AND EXISTS (
                  SELECT 1 FROM penstock.partitions p
                  JOIN penstock.segments s ON s.partition_id = p.partition_id AND s.ends IS NOT NULL
                  WHERE p.queue_id = q.queue_id
              )
        ),
        'dead_letters', (
            SELECT coalesce(jsonb_agg(jsonb_build_object(
                'queue', q.name, 'group', g.name, 'letters', d.letters, 'since', d.since
            )), '[]')
            FROM penstock.consumer_groups g
            JOIN penstock.queues q ON q.queue_id = g.queue_id
            CROSS JOIN LATERAL (
                SELECT count(*) AS letters, min(d.died_at) AS since
                FROM (SELECT d.died_at FROM penstock.dead_letters d WHERE d.group_id = g.group_id LIMIT 1000) d
            ) d
            WHERE d.letters > 0
        ),
        'checks', (SELECT coalesce(jsonb_agg(to_jsonb(c)), '[]') FROM penstock.list_checks() c)
    )
    FROM (SELECT penstock.policy_clock() AS at) n
$$;
