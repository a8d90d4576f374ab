-- penstock.unpack(partition_id, base_offset, count, created_at, run_skip, run_counts, run_times, …)
--
-- Turns a slice, as segment_slices returns it, into a row per message: for psql and the views. The clients unpack
-- by themselves.
--
-- Parameters: the columns of a slice, and the partition it belongs to.
-- Returns: a row per message.
-- Calls: int32_at, message_id. Tables: none.
CREATE OR REPLACE FUNCTION penstock.unpack(
    partition_id bigint, base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
RETURNS TABLE (
    id uuid, message_offset bigint, message_key text, payload bytea, message_headers jsonb, message_time timestamptz
)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    -- Assigned, and so fetched from storage and decompressed once: a slice of the argument would do it per message.
    all_values  bytea := body || ''::bytea;
    all_keys    bytea := keys || ''::bytea;
    all_headers bytea := headers || ''::bytea;
    -- As null_flags, which readers of the views may not call.
    nulls       bytea := CASE WHEN octet_length(ends) > 4 * count THEN substring(ends FROM 4 * count + 1) END;
    value_from  integer := body_start;
    value_to    integer;
    key_from    integer := key_start;
    key_to      integer;
    header_from integer := header_start;
    header_to   integer;
    -- Likewise; and walked, because to look a time up takes as long as there are runs.
    counts      integer[] := run_counts;
    times       timestamptz[] := run_times;
    run         integer := 1;
    run_to      integer := counts[1] - run_skip;
BEGIN
    message_time := coalesce(times[1], created_at);
    FOR i IN 0 .. count - 1 LOOP
        WHILE i >= run_to LOOP
            run := run + 1;
            run_to := run_to + counts[run];
            message_time := times[run];
        END LOOP;
        value_to := penstock.int32_at(ends, i);
        key_to := penstock.int32_at(key_ends, i);
        header_to := penstock.int32_at(header_ends, i);
        message_offset := base_offset + i;
        payload := CASE WHEN nulls IS NULL OR get_byte(nulls, i) = 0 THEN
            substring(all_values FROM value_from - body_start + 1 FOR value_to - value_from) END;
        message_key := CASE WHEN key_to > key_from THEN
            convert_from(substring(all_keys FROM key_from - key_start + 1 FOR key_to - key_from), 'UTF8') END;
        message_headers := CASE WHEN header_to > header_from THEN
            convert_from(
                substring(all_headers FROM header_from - header_start + 1 FOR header_to - header_from), 'UTF8'
            )::jsonb END;
        id := penstock.message_id(partition_id, message_offset, message_time);
        RETURN NEXT;
        value_from := value_to;
        key_from := key_to;
        header_from := header_to;
    END LOOP;
END
$$;
