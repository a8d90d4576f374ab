-- penstock.push_unique(queue_name, message, unique_key, unique_for, unique_until, replaces, partition_name, key,
--                      headers, delay, at)
--
-- Pushes one message unless the last one of the queue with the same unique key counts: for unique_for seconds, or until
-- it is 'taken' or 'done'; if both are given, while both hold. See push_unique_segments.
--
-- Parameters: those of push for one message; replaces - whether one that still waits gives way to this one. Without a
-- partition and a key, the unique key selects the partition.
-- Returns: outcome - 'stored', 'duplicate' or 'replaced'; the id of the message, null if it is scheduled or was not
-- stored; the id under which it is scheduled; and for a duplicate, or what was replaced, the id of the earlier message,
-- or the id under which that is scheduled.
-- Calls: require_messages, pack_messages, push_unique_segments, message_id. Tables: queues (read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.push_unique(
    queue_name     text,
    message        bytea,
    unique_key     text,
    unique_for     float8      DEFAULT NULL,
    unique_until   text        DEFAULT NULL,
    replaces       boolean     DEFAULT false,
    partition_name text        DEFAULT NULL,
    key            text        DEFAULT NULL,
    headers        jsonb       DEFAULT NULL,
    delay          float8      DEFAULT NULL,
    at             timestamptz DEFAULT NULL
)
RETURNS TABLE (outcome text, id uuid, scheduled_id bigint, earlier_id uuid, earlier_scheduled_id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    spread integer := coalesce(
        (SELECT (q.settings ->> 'spread')::integer FROM penstock.queues q WHERE q.name = queue_name), 1
    );
BEGIN
    IF unique_key IS NULL THEN
        RAISE EXCEPTION 'unique_key is null: give one, or use push' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_messages(ARRAY[message], ARRAY[key], ARRAY[headers], ARRAY[unique_key]);
    RETURN QUERY
    SELECT
        s.outcome,
        CASE
            WHEN s.message_count > 0 AND s.scheduled_id IS NULL
            THEN penstock.message_id(s.partition_id, s.first_offset, s.created_at)
        END,
        s.scheduled_id, penstock.message_id(s.earlier_partition_id, s.earlier_offset, s.earlier_time),
        s.earlier_scheduled_id
    FROM penstock.pack_messages(
        ARRAY[message], partition_name, ARRAY[key], ARRAY[headers], ARRAY[unique_key], spread
    ) p
    CROSS JOIN LATERAL penstock.push_unique_segments(
        ARRAY[queue_name], ARRAY[p.place], ARRAY[p.count], ARRAY[p.body], ARRAY[p.ends], ARRAY[p.keys],
        ARRAY[p.key_ends], ARRAY[p.headers], ARRAY[p.header_ends], ARRAY[delay], ARRAY[at], ARRAY[unique_key],
        ARRAY[unique_for], ARRAY[unique_until], ARRAY[coalesce(replaces, false)]
    ) s;
END
$$;
