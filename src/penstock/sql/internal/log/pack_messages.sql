-- penstock.pack_messages(messages, partition_name, keys, headers, dedupe_ids, spread)
--
-- Packs a plain array of messages into segments, one per partition, in the order given.
--
-- Parameters: as in push; spread - the queue's setting.
-- Returns: one row per segment: the name of its partition, the packed columns, and the positions of its messages,
-- from 1.
-- Calls: partition_for_key, int32_pack. Tables: none.
CREATE OR REPLACE FUNCTION penstock.pack_messages(
    messages bytea[], partition_name text, message_keys text[], message_headers jsonb[], dedupe_ids text[], spread integer
)
RETURNS TABLE (
    place text, count integer, body bytea, ends bytea, keys bytea, key_ends bytea, headers bytea, header_ends bytea,
    positions integer[]
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    -- Messages without a key stay together: a batch is one segment.
    keyless text := floor(random() * spread)::bigint::text;
    some_null boolean := array_position(messages, NULL) IS NOT NULL;
BEGIN
    RETURN QUERY
    WITH message AS (
        SELECT
            m.position, coalesce(m.value, '') AS value, m.value IS NULL AS is_null,
            convert_to(coalesce(m.key, ''), 'UTF8') AS key,
            convert_to(coalesce(nullif(m.header, '{}')::text, ''), 'UTF8') AS header,
            coalesce(
                partition_name, penstock.partition_for_key(coalesce(m.key, m.dedupe_id), spread), keyless
            ) AS place
        FROM unnest(messages, message_keys, message_headers, dedupe_ids) WITH ORDINALITY
            m (value, key, header, dedupe_id, position)
    ), placed AS (
        SELECT
            m.*,
            sum(octet_length(m.value) + octet_length(m.key) + octet_length(m.header)) OVER running / 1048576 AS megabyte,
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
            e.place, count(*)::integer AS count,
            string_agg(e.value, '' ORDER BY e.position) AS body,
            string_agg(penstock.int32_pack(e.value_end::integer), '' ORDER BY e.position) AS ends,
            string_agg(set_byte(decode('00', 'hex'), 0, e.is_null::integer), '' ORDER BY e.position)
                FILTER (WHERE some_null) AS nulls,
            nullif(string_agg(e.key, '' ORDER BY e.position), '') AS keys,
            string_agg(penstock.int32_pack(e.key_end::integer), '' ORDER BY e.position) AS key_ends,
            nullif(string_agg(e.header, '' ORDER BY e.position), '') AS headers,
            string_agg(penstock.int32_pack(e.header_end::integer), '' ORDER BY e.position) AS header_ends,
            array_agg(e.position::integer ORDER BY e.position) AS positions
        FROM ended e
        GROUP BY e.place, e.megabyte, e.myriad
    )
    SELECT
        p.place, p.count, p.body,
        p.ends || CASE WHEN position(decode('01', 'hex') IN p.nulls) > 0 THEN p.nulls ELSE '' END,
        p.keys, CASE WHEN p.keys IS NOT NULL THEN p.key_ends END,
        p.headers, CASE WHEN p.headers IS NOT NULL THEN p.header_ends END,
        p.positions
    FROM packed p
    ORDER BY p.positions[1];
END
$$;
