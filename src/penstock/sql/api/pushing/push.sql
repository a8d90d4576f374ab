-- penstock.push(queue_name, messages, partition_name, keys, headers, dedupe_ids, delay, at)
--
-- Pushes messages from psql or any language: takes a plain array, which the server packs. All messages commit
-- together with the caller's transaction. For locks and retryable errors see push_segments, for delays and dedupe ids
-- see push_with_options.
--
-- Parameters: messages - the values, which may be null; partition_name - null: a message with a key goes to
-- partition_for_key of the key, one with a dedupe id to that of the id, and the others, together, to one of the
-- queue's `spread` partitions; keys, headers and dedupe_ids - one per message, or null. Headers are JSON objects of
-- strings; delay - seconds until the messages are due, or at - the time, or neither.
-- Returns: one row per stored segment: its partition and the time of its messages, or the id under which it is
-- scheduled and until when; the positions of duplicates among the messages, from 1, and the ids of the originals.
-- Calls: require_messages, pack_messages, push_segments, push_with_options, message_id. Tables: queues (read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.push(
    queue_name     text,
    messages       bytea[],
    partition_name text        DEFAULT NULL,
    keys           text[]      DEFAULT NULL,
    headers        jsonb[]     DEFAULT NULL,
    dedupe_ids     text[]      DEFAULT NULL,
    delay          float8      DEFAULT NULL,
    at             timestamptz DEFAULT NULL
)
RETURNS TABLE (
    pushed_to text, partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz,
    scheduled_id bigint, due_at timestamptz, duplicate_positions integer[], duplicate_ids uuid[]
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    spread  integer := coalesce(
        (SELECT (q.settings ->> 'spread')::integer FROM penstock.queues q WHERE q.name = queue_name), 1
    );
    packed  record;
    places  integer;
BEGIN
    PERFORM penstock.require_messages(messages, keys, headers, dedupe_ids);
    SELECT
        array_agg(p.place ORDER BY p.nth) AS places, array_agg(p.count ORDER BY p.nth) AS counts,
        array_agg(p.body ORDER BY p.nth) AS bodies, array_agg(p.ends ORDER BY p.nth) AS ends,
        array_agg(p.keys ORDER BY p.nth) AS keys, array_agg(p.key_ends ORDER BY p.nth) AS key_ends,
        array_agg(p.headers ORDER BY p.nth) AS headers, array_agg(p.header_ends ORDER BY p.nth) AS header_ends,
        -- One segment's positions after the other's, as its messages are.
        (SELECT array_agg(o.position ORDER BY o.nth) FROM unnest(string_to_array(
            string_agg(array_to_string(p.positions, ','), ',' ORDER BY p.nth), ','
        )::integer[]) WITH ORDINALITY o (position, nth)) AS positions
    INTO packed
    FROM penstock.pack_messages(messages, push.partition_name, push.keys, push.headers, push.dedupe_ids, spread)
        WITH ORDINALITY p (place, count, body, ends, keys, key_ends, headers, header_ends, positions, nth);
    places := cardinality(packed.places);
    IF dedupe_ids IS NULL AND delay IS NULL AND at IS NULL THEN
        RETURN QUERY
        SELECT
            packed.places[s.nth], s.partition_id, s.first_offset, s.message_count, s.created_at,
            NULL::bigint, NULL::timestamptz, NULL::integer[], NULL::uuid[]
        FROM penstock.push_segments(
            array_fill(queue_name, ARRAY[places]), packed.places, packed.counts, packed.bodies, packed.ends,
            packed.keys, packed.key_ends, packed.headers, packed.header_ends
        ) WITH ORDINALITY s (partition_id, first_offset, message_count, created_at, nth);
        RETURN;
    END IF;
    RETURN QUERY
    SELECT
        packed.places[s.nth], s.partition_id, s.first_offset, s.message_count, s.created_at, s.scheduled_id, s.due_at,
        d.positions, d.ids
    FROM penstock.push_with_options(
        array_fill(queue_name, ARRAY[places]), packed.places, packed.counts, packed.bodies, packed.ends,
        packed.keys, packed.key_ends, packed.headers, packed.header_ends,
        array_fill(delay, ARRAY[places]), array_fill(at, ARRAY[places]),
        CASE WHEN dedupe_ids IS NOT NULL THEN ARRAY(
            SELECT push.dedupe_ids[o.position]
            FROM unnest(packed.positions) WITH ORDINALITY o (position, nth) ORDER BY o.nth
        ) END
    ) WITH ORDINALITY s (
        partition_id, first_offset, message_count, created_at, scheduled_id, due_at,
        duplicate_positions, duplicate_offsets, duplicate_times, duplicate_scheduled_ids, nth
    )
    LEFT JOIN LATERAL (
        SELECT
            array_agg(packed.positions[c.before + u.position + 1] ORDER BY u.nth) AS positions,
            array_agg(penstock.message_id(s.partition_id, u.message_offset, u.created_at) ORDER BY u.nth) AS ids
        FROM unnest(s.duplicate_positions, s.duplicate_offsets, s.duplicate_times) WITH ORDINALITY
            u (position, message_offset, created_at, nth)
        CROSS JOIN (SELECT coalesce(sum(c), 0)::integer AS before FROM unnest(packed.counts[:s.nth - 1]) c) c
    ) d ON true
    ORDER BY s.nth;
END
$$;
