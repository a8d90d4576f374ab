-- penstock.list_warm_groups()
--
-- Lists the groups whose setting `warm` is on, or that have a window in Valkey: who keeps it and how it fares.
--
-- Returns: a row per group, by queue and name; dispatcher and what follows are null where there never was one; `live`
-- says whether its lease has not ended; obstacle - why PostgreSQL serves the group at present, null where nothing is in
-- the way.
-- Calls: warm_obstacle. Tables: consumer_groups, queues, warm_leases (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_warm_groups()
RETURNS TABLE (
    queue text, consumer_group text, group_id integer, obstacle text, dispatcher text, live boolean, epoch bigint,
    state text, since timestamptz, items bigint, bytes bigint, transitions bigint, capacity bigint
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        q.name, g.name, g.group_id, penstock.warm_obstacle(g.group_id), w.dispatcher, w.deadline > clock_timestamp(),
        w.epoch, w.state, w.since, w.items, w.bytes, w.transitions,
        coalesce(g.config ->> 'in_memory_queue_size', '5000')::bigint
    FROM penstock.consumer_groups g
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    LEFT JOIN penstock.warm_leases w ON w.group_id = g.group_id
    WHERE g.config @> '{"warm": true}' OR w.deadline > clock_timestamp()
    ORDER BY q.name, g.name
$$;
