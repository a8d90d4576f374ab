-- penstock.list_action_work(flow_name)
--
-- Lists the actions that workers run, with what they have still to do: `warm` is claimed by workers, `cold` is not.
--
-- Parameters: flow_name - null for all.
-- Returns: a row per action, by flow and in the flow's order.
-- Calls: group_summary. Tables: actions, queues, consumer_groups (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_action_work(flow_name text DEFAULT NULL)
RETURNS TABLE (
    flow text, action text, queue text, output text, warm bigint, cold bigint, oldest_since timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        a.flow_name, a.action_name, a.queue, a.output, coalesce(w.warm, 0)::bigint,
        greatest(coalesce(w.lag, 0) - coalesce(w.warm, 0), 0)::bigint, w.oldest_since
    FROM penstock.actions a
    LEFT JOIN penstock.queues q ON q.name = a.queue
    LEFT JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id AND g.name = a.flow_name || '.' || a.action_name
    LEFT JOIN LATERAL (
        SELECT s.lag, s.lag - s.depth AS warm, s.oldest_since FROM penstock.group_summary(g.group_id) s
    ) w ON g.group_id IS NOT NULL
    WHERE a.queue IS NOT NULL AND (list_action_work.flow_name IS NULL OR a.flow_name = list_action_work.flow_name)
    ORDER BY a.flow_name, a.position
$$;
