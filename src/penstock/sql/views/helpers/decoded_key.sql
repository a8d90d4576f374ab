-- penstock.decoded_key(packed)
--
-- Reads a key out of its bytes.
--
-- Parameters: packed - the bytes of one key.
-- Returns: the text; null for bytes that are no text, or that PostgreSQL's text cannot hold.
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
