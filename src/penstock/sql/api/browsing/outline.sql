-- penstock.outline()
--
-- Lists all queues with their groups, for a page that stays open: names, settings, and what the last sample says of what
-- waits. It reads a row per queue and group, whatever is stored and whatever waits. Dead letters are counted up to 10000
-- of a group.
--
-- Parameters: none.
-- Returns: a row per queue, by name: what somebody set, what holds, and its groups as a JSON array.
-- Calls: effective_group_settings. Tables: queues, consumer_groups, group_samples, breakers, dead_letters (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.outline()
RETURNS TABLE (name text, description text, created_at timestamptz, config jsonb, settings jsonb, groups jsonb)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
    SELECT q.name, q.description, q.created_at, q.config, q.settings, coalesce(g.groups, '[]')
    FROM penstock.queues q
    LEFT JOIN LATERAL (
        SELECT jsonb_agg(jsonb_build_object(
            'name', g.name, 'mode', g.mode, 'subscription', g.subscription, 'created_at', g.created_at,
            'config', g.config, 'settings', penstock.effective_group_settings(q.settings, g.config),
            'paused', g.config @> '{"paused": true}', 'held_until', g.held_until, 'enrolling', g.enrolled_to IS NOT NULL,
            'breaker', b.state, 'lag', s.lag, 'depth', s.depth, 'ready', s.ready, 'claimed', s.claimed,
            'waiting', s.waiting, 'oldest_at', s.oldest_at, 'sampled_at', s.sampled_at, 'times', s.times, 'lags', s.lags,
            'dead_letters', d.letters
        ) ORDER BY g.name) AS groups
        FROM penstock.consumer_groups g
        LEFT JOIN penstock.group_samples s ON s.group_id = g.group_id
        LEFT JOIN penstock.breakers b ON b.group_id = g.group_id
        CROSS JOIN LATERAL (
            SELECT count(*) AS letters
            FROM (SELECT FROM penstock.dead_letters d WHERE d.group_id = g.group_id LIMIT 10000) d
        ) d
        WHERE g.queue_id = q.queue_id
    ) g ON true
    ORDER BY q.name
$$;
