-- penstock.push(queue_name, messages, partition_name, keys, headers)
--
-- Pushes messages from psql or any language: a plain array in, packed by the server. All of them commit together
-- with the caller's transaction. Locks and retryable errors are those of push_segments.
--
-- Parameters: messages - the values; partition_name - where to, or null: then a message with a key goes to
-- partition_for_key and the others, together, to one of the queue's spread; keys and headers - one per message,
-- or null. Headers are JSON objects of strings.
-- Returns: one row per stored segment: where it went and the time its messages got.
-- Calls: require_messages, partition_for_key, int32_pack, push_segments. Tables: queues (read).
CREATE OR REPLACE FUNCTION penstock.push(
    queue_name     text,
    messages       bytea[],
    partition_name text    DEFAULT NULL,
    keys           text[]  DEFAULT NULL,
    headers        jsonb[] DEFAULT NULL
)
RETURNS TABLE (
    pushed_to text, partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    spread integer := coalesce(
        (SELECT (q.settings ->> 'spread')::integer FROM penstock.queues q WHERE q.name = queue_name), 1
    );
    -- Messages without a key stay together: a batch is one segment.
    keyless text := floor(random() * spread)::bigint::text;
BEGIN
    PERFORM penstock.require_messages(messages, keys, headers);
    RETURN QUERY
    WITH message AS (
        SELECT
            m.position, m.value, convert_to(coalesce(m.key, ''), 'UTF8') AS key,
            convert_to(coalesce(nullif(m.header, '{}')::text, ''), 'UTF8') AS header,
            coalesce(push.partition_name, penstock.partition_for_key(m.key, spread), keyless) AS place
        FROM unnest(messages, push.keys, push.headers) WITH ORDINALITY m (value, key, header, position)
    ), placed AS (
        SELECT
            m.*,
            sum(octet_length(m.value)) OVER running / 1048576 AS megabyte,
            row_number() OVER running / 10000 AS myriad
        FROM message m
        WINDOW running AS (PARTITION BY m.place ORDER BY m.position)
    ), ended AS (
        SELECT
            p.*,
            sum(octet_length(p.value)) OVER running AS value_end,
            sum(octet_length(p.key)) OVER running AS key_end,
            sum(octet_length(p.header)) OVER running AS header_end
        FROM placed p
        WINDOW running AS (PARTITION BY p.place, p.megabyte, p.myriad ORDER BY p.position)
    ), packed AS (
        SELECT
            e.place, count(*)::integer AS count, min(e.position) AS position,
            string_agg(e.value, '' ORDER BY e.position) AS body,
            string_agg(penstock.int32_pack(e.value_end::integer), '' ORDER BY e.position) AS ends,
            nullif(string_agg(e.key, '' ORDER BY e.position), '') AS keys,
            string_agg(penstock.int32_pack(e.key_end::integer), '' ORDER BY e.position) AS key_ends,
            nullif(string_agg(e.header, '' ORDER BY e.position), '') AS headers,
            string_agg(penstock.int32_pack(e.header_end::integer), '' ORDER BY e.position) AS header_ends
        FROM ended e
        GROUP BY e.place, e.megabyte, e.myriad
    ), columns AS (
        SELECT
            array_agg(p.place ORDER BY p.position) AS places,
            array_agg(p.count ORDER BY p.position) AS counts,
            array_agg(p.body ORDER BY p.position) AS bodies,
            array_agg(p.ends ORDER BY p.position) AS ends,
            array_agg(p.keys ORDER BY p.position) AS keys,
            array_agg(CASE WHEN p.keys IS NOT NULL THEN p.key_ends END ORDER BY p.position) AS key_ends,
            array_agg(p.headers ORDER BY p.position) AS headers,
            array_agg(CASE WHEN p.headers IS NOT NULL THEN p.header_ends END ORDER BY p.position) AS header_ends
        FROM packed p
    )
    SELECT c.places[s.position], s.partition_id, s.first_offset, s.message_count, s.created_at
    FROM columns c
    CROSS JOIN LATERAL penstock.push_segments(
        array_fill(queue_name, ARRAY[cardinality(c.places)]), c.places, c.counts, c.bodies, c.ends,
        c.keys, c.key_ends, c.headers, c.header_ends
    ) WITH ORDINALITY s (partition_id, first_offset, message_count, created_at, position);
END
$$;
