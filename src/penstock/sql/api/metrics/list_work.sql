-- penstock.list_work(queue_name)
--
-- Lists what waits for each group, as it was last sampled: how many messages, how many of them were not handed out
-- (cold), since when the oldest waits, and its did, the id of the message that entered the flow. Of a group that is
-- that of an action, also flow, action and action class. It reads a row per group, whatever waits.
--
-- Parameters: queue_name - null for all.
-- Returns: a row per group that ever had work, by queue and name.
-- Calls: find_queue, segment_slices, unpack, message_id, policy_clock. Tables: group_samples, consumer_groups, queues,
-- actions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_work(queue_name text DEFAULT NULL)
RETURNS TABLE (
    queue text, consumer_group text, flow text, flow_type text, action text, action_class text, lag bigint,
    cold bigint, ready bigint, claimed bigint, waiting bigint, oldest_at timestamptz, oldest_age float8,
    oldest_id uuid, oldest_did text, sampled_at timestamptz, times timestamptz[], lags bigint[], depths bigint[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    wanted integer := CASE WHEN queue_name IS NOT NULL THEN penstock.find_queue(queue_name) END;
BEGIN
    RETURN QUERY
    SELECT
        q.name, g.name, a.flow_name, coalesce(a.flow_type, 'UNKNOWN'), a.action_name, a.action_class, s.lag, s.depth,
        s.ready, s.claimed, s.waiting, s.oldest_at,
        CASE WHEN s.oldest_at IS NOT NULL THEN greatest(extract(epoch FROM n.at - s.oldest_at), 0)::float8 END,
        m.id, coalesce(m.did, m.id::text), s.sampled_at, s.times, s.lags, s.depths
    FROM penstock.group_samples s
    JOIN penstock.consumer_groups g ON g.group_id = s.group_id
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    LEFT JOIN penstock.actions a ON a.flow_name || '.' || a.action_name = g.name
    CROSS JOIN (SELECT penstock.policy_clock() AS at) n
    LEFT JOIN LATERAL (
        SELECT
            penstock.message_id(s.oldest_partition, s.oldest_offset, u.message_time) AS id,
            u.message_headers ->> 'penstock-did' AS did
        FROM penstock.segment_slices(s.oldest_partition, s.oldest_offset, s.oldest_offset + 1) c
        CROSS JOIN LATERAL penstock.unpack(
            s.oldest_partition, c.base_offset, c.count, c.created_at, c.run_skip, c.run_counts, c.run_times,
            c.body_start, c.body, c.ends, c.key_start, c.keys, c.key_ends, c.header_start, c.headers, c.header_ends
        ) u
        LIMIT 1
    ) m ON s.oldest_offset IS NOT NULL
    WHERE wanted IS NULL OR q.queue_id = wanted
    ORDER BY q.name, g.name;
END
$$;
