-- penstock.list_queues(queue_name)
--
-- Lists the queues, or one of them. Messages are subtracted, not counted, but every partition is visited.
--
-- Parameters: queue_name - null for all; a name that does not exist is an error.
-- Returns: a row per queue, by name.
-- Calls: find_queue, partition_span. Tables: queues, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_queues(queue_name text DEFAULT NULL)
RETURNS TABLE (
    name text, description text, created_at timestamptz, config jsonb, settings jsonb,
    partitions bigint, messages bigint, dropped bigint, newest_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted integer := CASE WHEN queue_name IS NOT NULL THEN penstock.find_queue(queue_name) END;
BEGIN
    RETURN QUERY
    SELECT
        q.name, q.description, q.created_at, q.config, q.settings,
        t.partitions, coalesce(t.messages, 0)::bigint, coalesce(t.dropped, 0)::bigint, t.newest_at
    FROM penstock.queues q
    CROSS JOIN LATERAL (
        SELECT
            count(*) AS partitions, sum(s.head_offset - s.floor_offset) AS messages,
            sum(s.floor_offset) AS dropped, max(s.newest_at) AS newest_at
        FROM penstock.partitions p
        CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
        WHERE p.queue_id = q.queue_id AND p.lane_of IS NULL
    ) t
    WHERE wanted IS NULL OR q.queue_id = wanted
    ORDER BY q.name;
END
$$;
