-- penstock.keep_messages(count, body, ends, keys, key_ends, headers, header_ends, dropped)
--
-- Packs a segment again without some of its messages.
--
-- Parameters: a packed segment; dropped - the positions to leave out, from 0; null keeps it as it is.
-- Returns: the packed segment; count is 0 if no message is left.
-- Calls: end_at, int32_pack, null_flags. Tables: none.
CREATE OR REPLACE FUNCTION penstock.keep_messages(
    INOUT count integer, INOUT body bytea, INOUT ends bytea, INOUT keys bytea, INOUT key_ends bytea,
    INOUT headers bytea, INOUT header_ends bytea, dropped integer[]
)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    -- Assigned, and so fetched from storage and decompressed once.
    all_values  bytea := body || ''::bytea;
    all_keys    bytea := keys || ''::bytea;
    all_headers bytea := headers || ''::bytea;
    nulls       bytea := penstock.null_flags(count, ends);
BEGIN
    IF dropped IS NULL THEN
        RETURN;
    END IF;
    WITH stored AS (
        -- As unpack: no end lies before the one before it.
        SELECT
            i,
            max(penstock.end_at(keep_messages.ends, i, octet_length(all_values))) OVER upto AS value_to,
            max(penstock.end_at(keep_messages.key_ends, i, octet_length(all_keys))) OVER upto AS key_to,
            max(penstock.end_at(keep_messages.header_ends, i, octet_length(all_headers))) OVER upto AS header_to
        FROM generate_series(-1, keep_messages.count - 1) i
        WINDOW upto AS (ORDER BY i)
    ), cut AS (
        SELECT
            s.*, lag(s.value_to) OVER before AS value_from, lag(s.key_to) OVER before AS key_from,
            lag(s.header_to) OVER before AS header_from
        FROM stored s
        WINDOW before AS (ORDER BY s.i)
    ), message AS (
        SELECT
            i AS position,
            substring(all_values FROM value_from + 1 FOR value_to - value_from) AS value,
            substring(all_keys FROM key_from + 1 FOR key_to - key_from) AS key,
            substring(all_headers FROM header_from + 1 FOR header_to - header_from) AS header,
            coalesce(get_byte(nulls, i), 0) AS is_null
        FROM cut
        -- Not <> ALL, which would go through all of them for each.
        WHERE i >= 0 AND NOT EXISTS (SELECT 1 FROM unnest(dropped) d WHERE d = i)
    ), ended AS (
        SELECT
            m.*,
            sum(octet_length(m.value)) OVER running AS value_end,
            sum(octet_length(m.key)) OVER running AS key_end,
            sum(octet_length(m.header)) OVER running AS header_end
        FROM message m
        WINDOW running AS (ORDER BY m.position)
    )
    SELECT
        count(*)::integer,
        string_agg(e.value, '' ORDER BY e.position),
        string_agg(penstock.int32_pack(e.value_end::integer), '' ORDER BY e.position)
            || CASE max(e.is_null)
                WHEN 1 THEN string_agg(set_byte(decode('00', 'hex'), 0, e.is_null), '' ORDER BY e.position) ELSE ''
            END,
        string_agg(e.key, '' ORDER BY e.position),
        string_agg(penstock.int32_pack(e.key_end::integer), '' ORDER BY e.position),
        string_agg(e.header, '' ORDER BY e.position),
        string_agg(penstock.int32_pack(e.header_end::integer), '' ORDER BY e.position)
    INTO count, body, ends, keys, key_ends, headers, header_ends
    FROM ended e;
END
$$;
