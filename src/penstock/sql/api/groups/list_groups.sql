-- penstock.list_groups(queue_name)
--
-- Lists the groups of a queue, or of all queues, with the messages that wait and the claims that are held.
--
-- Parameters: queue_name - null for all.
-- Returns: a row per group, by queue and name.
-- Calls: find_queue, group_work. Tables: queues, consumer_groups, dead_letters (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_groups(queue_name text DEFAULT NULL)
RETURNS TABLE (
    queue text, name text, mode text, subscription text, created_at timestamptz, config jsonb, settings jsonb,
    lag bigint, depth bigint, ready bigint, claimed bigint, waiting bigint, enrolling boolean,
    oldest_since timestamptz, dead_letters bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted integer := CASE WHEN queue_name IS NOT NULL THEN penstock.find_queue(queue_name) END;
BEGIN
    RETURN QUERY
    SELECT
        q.name, g.name, g.mode, g.subscription, g.created_at, g.config, q.settings || g.config,
        coalesce(w.lag, 0)::bigint, coalesce(w.depth, 0)::bigint, w.ready, w.claimed, w.waiting,
        g.enrolled_to IS NOT NULL, w.oldest_since,
        (SELECT count(*) FROM penstock.dead_letters d WHERE d.group_id = g.group_id)
    FROM penstock.consumer_groups g
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    CROSS JOIN LATERAL (
        SELECT
            sum(greatest(w.head_offset - w.committed, 0)) AS lag,
            sum(greatest(w.head_offset - greatest(w.claimed_to, w.committed), 0)) AS depth,
            count(*) FILTER (WHERE w.state = 'r') AS ready,
            count(*) FILTER (WHERE w.state = 'c') AS claimed,
            count(*) FILTER (WHERE w.state = 't') AS waiting,
            min(w.since) FILTER (WHERE w.head_offset > w.committed) AS oldest_since
        FROM penstock.group_work(g.group_id) w
    ) w
    WHERE wanted IS NULL OR q.queue_id = wanted
    ORDER BY q.name, g.name;
END
$$;
