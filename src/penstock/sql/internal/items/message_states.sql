-- penstock.message_states(target, wanted, group_name)
--
-- Says what a message is to each group of its queue; see message_state. Of a group that has a window in Valkey, a message
-- that lies there is 'queued', whether or not a worker has it, and one that waits in PostgreSQL alone is 'cold queued'.
--
-- Parameters: the partition and the offset of the message; group_name - null for all groups.
-- Returns: a row per group; one without a group where there is none; no row where there is no such message.
-- Calls: partition_span, item_state. Tables: partitions, queues, consumer_groups, dead_letters, cancellations, item_notes,
-- warm_leases (read).
CREATE OR REPLACE FUNCTION penstock.message_states(target bigint, wanted bigint, group_name text DEFAULT NULL)
RETURNS TABLE (
    queue text, partition_of text, group_id integer, consumer_group text, state text, attempt integer, due_at timestamptz,
    consumer text, error text, dead_letter_id bigint, cancelled_at timestamptz, progress float8, note text,
    noted_at timestamptz
)
LANGUAGE sql STABLE
AS $$
    SELECT
        q.name, p.name, g.group_id, g.name,
        CASE
            WHEN i.state IN ('waiting', 'delayed', 'retrying') AND c.cancelled_at IS NOT NULL THEN 'cancelled'
            WHEN i.state IN ('waiting', 'delayed', 'retrying') AND wanted < s.floor_offset THEN 'dropped'
            WHEN i.state = 'done' AND d.dead_letter_id IS NOT NULL THEN 'dead'
            -- Else it was handled before its worker was told: then the group is done with it.
            WHEN i.state = 'done' AND c.heeded THEN 'cancelled'
            WHEN i.state = 'in flight' AND i.consumer = 'penstock warm tier' THEN 'queued'
            WHEN i.state = 'waiting' AND w.group_id IS NOT NULL THEN 'cold queued'
            ELSE i.state
        END,
        -- The dispatcher's claim is no delivery, and who has taken it from the window is not known here.
        CASE WHEN i.consumer = 'penstock warm tier' THEN greatest(i.attempt - 1, 0) ELSE i.attempt END,
        i.due_at, nullif(i.consumer, 'penstock warm tier'), CASE WHEN d.dead_letter_id IS NOT NULL THEN d.error ELSE i.error END,
        d.dead_letter_id, c.cancelled_at, n.progress, n.note, n.noted_at
    FROM penstock.partitions p
    JOIN penstock.queues q ON q.queue_id = p.queue_id
    CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
    LEFT JOIN penstock.consumer_groups g ON g.queue_id = p.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
        AND (message_states.group_name IS NULL OR g.name = message_states.group_name)
    LEFT JOIN LATERAL penstock.item_state(g.group_id, p.partition_id, wanted) i ON g.group_id IS NOT NULL
    LEFT JOIN LATERAL (
        SELECT d.dead_letter_id, coalesce(d.last_error, d.reason) AS error FROM penstock.dead_letters d
        WHERE d.partition_id = target AND d.message_offset = wanted AND d.group_id = g.group_id
        ORDER BY d.dead_letter_id DESC
        LIMIT 1
    ) d ON true
    LEFT JOIN LATERAL (
        SELECT c.cancelled_at, c.heeded FROM penstock.cancellations c
        WHERE c.group_id = g.group_id AND c.partition_id = target AND c.message_offset = wanted
    ) c ON true
    LEFT JOIN LATERAL (
        SELECT n.progress, n.note, n.noted_at FROM penstock.item_notes n
        WHERE n.group_id = g.group_id AND n.partition_id = target AND n.message_offset = wanted
    ) n ON true
    LEFT JOIN penstock.warm_leases w ON w.group_id = g.group_id AND w.deadline > clock_timestamp()
    WHERE p.partition_id = target AND wanted < s.head_offset
    ORDER BY g.name
$$;
