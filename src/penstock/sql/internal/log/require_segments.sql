-- penstock.require_segments(targets, counts, bodies, ends, keys, key_ends, headers, header_ends)
--
-- Raises an error if a segment is not packed correctly or has a message over its queue's limit. Called when messages
-- are pushed: a limit that is lowered later does not apply to them.
--
-- Parameters: targets - a partition id per segment; the others as in push_segments.
-- Returns: whether pushes to one of the queues are paused or limited; raises what require_packed raises.
-- Calls: require_packed. Tables: queues, partitions (read).
CREATE OR REPLACE FUNCTION penstock.require_segments(
    targets     bigint[],
    counts      integer[],
    bodies      bytea[],
    ends        bytea[],
    keys        bytea[],
    key_ends    bytea[],
    headers     bytea[],
    header_ends bytea[]
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    gated   boolean;
    checked bigint;
BEGIN
    SELECT bool_or(p.push_gated), count(penstock.require_packed(
        p.name, (p.settings ->> 'max_message_bytes')::integer,
        s.count, s.body, s.ends, s.keys, s.key_ends, s.headers, s.header_ends
    )::text)
    INTO gated, checked
    FROM unnest(targets, counts, bodies, ends, keys, key_ends, headers, header_ends)
        s (target, count, body, ends, keys, key_ends, headers, header_ends)
    -- LIMIT: a plain join, planned for small tables, begins with the queues and all of their partitions.
    CROSS JOIN LATERAL (
        SELECT
            (SELECT q.name FROM penstock.queues q WHERE q.queue_id = p.queue_id),
            (SELECT q.settings FROM penstock.queues q WHERE q.queue_id = p.queue_id),
            (SELECT q.push_gated FROM penstock.queues q WHERE q.queue_id = p.queue_id)
        FROM penstock.partitions p
        WHERE p.partition_id = s.target
        LIMIT 1
    ) p;
    RETURN gated;
END
$$;
