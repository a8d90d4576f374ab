-- penstock.decoded_headers(packed)
--
-- Decodes the headers of a message.
--
-- Parameters: packed - the bytes of one message's headers.
-- Returns: the headers; null for bytes that are not a JSON object of strings, or that jsonb cannot store.
-- Calls: nothing. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.decoded_headers(packed bytea)
RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    said jsonb;
BEGIN
    -- Not where it is declared: an exception there would pass the handler by.
    said := convert_from(packed, 'UTF8')::jsonb;
    IF jsonb_typeof(said) <> 'object' OR jsonb_path_exists(said, '$.* ? (@.type() != "string")') THEN
        RETURN NULL;
    END IF;
    RETURN said;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;
