-- penstock.list_groups(queue_name)
--
-- Lists the groups of a queue, or of all queues, with the messages that wait and the claims that are held. Of a group that
-- conflates, `effective_lag` is how many of the messages that count as lag will be delivered; of others it is the lag.
-- Where more than 10,000 partitions wait, what waits is as it was last sampled, at `sampled_at`; before the first sample, as much
-- as was visited: `at_least`.
--
-- Parameters: queue_name - null for all.
-- Returns: a row per group, by queue and name.
-- Calls: find_queue, group_summary, effective_group_settings. Tables: queues, consumer_groups, dead_letters (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_groups(queue_name text DEFAULT NULL)
RETURNS TABLE (
    queue text, name text, mode text, subscription text, created_at timestamptz, config jsonb, settings jsonb,
    lag bigint, depth bigint, ready bigint, claimed bigint, waiting bigint, enrolling boolean,
    oldest_since timestamptz, dead_letters bigint, effective_lag bigint, paused boolean, held_until timestamptz,
    sampled_at timestamptz, at_least boolean
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted integer := CASE WHEN queue_name IS NOT NULL THEN penstock.find_queue(queue_name) END;
BEGIN
    RETURN QUERY
    SELECT
        q.name, g.name, g.mode, g.subscription, g.created_at, g.config,
        penstock.effective_group_settings(q.settings, g.config),
        w.lag, w.depth, w.ready, w.claimed, w.waiting,
        g.enrolled_to IS NOT NULL, w.oldest_since,
        (SELECT count(*) FROM penstock.dead_letters d WHERE d.group_id = g.group_id),
        CASE WHEN g.config @> '{"conflate": true}' THEN w.newest ELSE w.lag END,
        g.flow_paused OR g.config @> '{"paused": true}', g.held_until, w.sampled_at, w.at_least
    FROM penstock.consumer_groups g
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    CROSS JOIN LATERAL penstock.group_summary(g.group_id) w
    WHERE wanted IS NULL OR q.queue_id = wanted
    ORDER BY q.name, g.name;
END
$$;
