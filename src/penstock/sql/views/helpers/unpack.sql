-- penstock.unpack(partition_id, base_offset, count, created_at, run_skip, run_counts, run_times, …)
--
-- Returns a slice of segment_slices as a row per message, for psql and the views. The clients unpack by themselves.
--
-- It accepts any bytes. A key that is not text is shown in PostgreSQL's escape format, as encode(key, 'escape')
-- writes it, and so are headers that are not a JSON object of strings, as the one header penstock-undecoded. An end
-- that is lower than the one before, or outside the column, is moved to the nearest valid place: its value is empty
-- or cut.
--
-- Parameters: the columns of a slice, and the partition it belongs to.
-- Returns: a row per message.
-- Calls: int32_at, message_id, decoded_key, decoded_headers. Tables: none.
-- Granted to: consumer.
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
LANGUAGE plpgsql IMMUTABLE
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
    value_most  integer := body_start + octet_length(all_values);
    key_from    integer := key_start;
    key_to      integer;
    key_most    integer := key_start + octet_length(all_keys);
    header_from integer := header_start;
    header_to   integer;
    header_most integer := header_start + octet_length(all_headers);
    -- Likewise; and walked, because to look a time up takes as long as there are runs.
    counts      integer[] := run_counts;
    times       timestamptz[] := run_times;
    run         integer := 1;
    run_to      integer := counts[1] - run_skip;
    i           integer := 0;
    careful     boolean := false;
    packed      bytea;
BEGIN
    message_time := coalesce(times[1], created_at);
    WHILE i < count LOOP
        BEGIN
            WHILE i < count LOOP
                WHILE i >= run_to LOOP
                    run := run + 1;
                    run_to := run_to + counts[run];
                    message_time := times[run];
                END LOOP;
                value_to := least(greatest(penstock.int32_at(ends, i), value_from), value_most);
                key_to := least(greatest(penstock.int32_at(key_ends, i), key_from), key_most);
                header_to := least(greatest(penstock.int32_at(header_ends, i), header_from), header_most);
                message_offset := base_offset + i;
                payload := CASE WHEN nulls IS NULL OR get_byte(nulls, i) = 0 THEN
                    substring(all_values FROM value_from - body_start + 1 FOR value_to - value_from) END;
                message_key := NULL;
                IF key_to > key_from THEN
                    packed := substring(all_keys FROM key_from - key_start + 1 FOR key_to - key_from);
                    message_key := CASE WHEN careful THEN coalesce(penstock.decoded_key(packed), encode(packed, 'escape'))
                        ELSE convert_from(packed, 'UTF8') END;
                END IF;
                message_headers := NULL;
                IF header_to > header_from THEN
                    packed := substring(all_headers FROM header_from - header_start + 1 FOR header_to - header_from);
                    message_headers := CASE WHEN NOT careful THEN convert_from(packed, 'UTF8')::jsonb
                        ELSE penstock.decoded_headers(packed) END;
                    IF message_headers IS NULL OR jsonb_typeof(message_headers) <> 'object'
                       OR jsonb_path_exists(message_headers, '$.* ? (@.type() != "string")')
                    THEN
                        message_headers := jsonb_build_object('penstock-undecoded', encode(packed, 'escape'));
                    END IF;
                END IF;
                id := penstock.message_id(partition_id, message_offset, message_time);
                RETURN NEXT;
                value_from := value_to;
                key_from := key_to;
                header_from := header_to;
                i := i + 1;
            END LOOP;
        EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
            -- What came before this message is returned already. From here on each is looked at by itself, which takes
            -- longer.
            IF careful THEN
                RAISE;
            END IF;
            careful := true;
        END;
    END LOOP;
END
$$;
