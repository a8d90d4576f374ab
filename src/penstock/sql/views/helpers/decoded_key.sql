-- penstock.decoded_key(packed)
--
-- Decodes a key.
--
-- Parameters: packed - the bytes of one key.
-- Returns: the text; null for bytes that are not text, or that PostgreSQL's text cannot store.
-- Calls: nothing. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.decoded_key(packed bytea)
RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN convert_from(packed, 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;
