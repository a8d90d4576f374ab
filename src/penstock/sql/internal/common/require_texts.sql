-- penstock.require_texts(count, keys, key_ends, headers, header_ends)
--
-- Raises an error if a key is not text or if headers are not a JSON object of strings: they could not be shown in
-- SQL. It checks each message; callers use texts_are_plain first.
--
-- Parameters: packed columns, null where unused.
-- Returns: nothing; raises invalid_parameter_value with the position of the message.
-- Calls: decoded_key, decoded_headers, int32_at. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_texts(
    count integer, keys bytea, key_ends bytea, headers bytea, header_ends bytea
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    key_from    integer := 0;
    key_to      integer;
    header_from integer := 0;
    header_to   integer;
    packed      bytea;
BEGIN
    FOR i IN 0 .. count - 1 LOOP
        key_to := least(greatest(penstock.int32_at(key_ends, i), key_from), octet_length(keys));
        header_to := least(greatest(penstock.int32_at(header_ends, i), header_from), octet_length(headers));
        IF key_to > key_from THEN
            packed := substring(keys FROM key_from + 1 FOR key_to - key_from);
            IF penstock.decoded_key(packed) IS NULL THEN
                RAISE EXCEPTION 'the key of message % is not UTF-8 text, or holds a NUL: %',
                    i + 1, left(encode(packed, 'escape'), 200)
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Nothing was changed. Encode such a key first.';
            END IF;
        END IF;
        IF header_to > header_from THEN
            packed := substring(headers FROM header_from + 1 FOR header_to - header_from);
            IF penstock.decoded_headers(packed) IS NULL THEN
                RAISE EXCEPTION 'the headers of message % are not a JSON object of strings that jsonb can hold: %',
                    i + 1, left(encode(packed, 'escape'), 200)
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Nothing was changed. jsonb holds no \u0000.';
            END IF;
        END IF;
        key_from := key_to;
        header_from := header_to;
    END LOOP;
END
$$;
