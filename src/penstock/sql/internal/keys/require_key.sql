-- penstock.require_key(key)
--
-- Finds an API key by name or id, and locks it.
--
-- Parameters: key - its name or id.
-- Returns: its id; raises undefined_object if there is no such key, or it is revoked.
-- Calls: nothing. Tables: api_keys (lock).
CREATE OR REPLACE FUNCTION penstock.require_key(key text)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    found_id text;
BEGIN
    -- A key may have the id of another one as its name: the name comes first, as people use it.
    SELECT k.key_id INTO found_id
    FROM penstock.api_keys k
    WHERE (k.name = key OR k.key_id = key) AND k.revoked_at IS NULL
    ORDER BY k.name = key DESC
    LIMIT 1
    FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no key "%" that is not revoked', key
            USING ERRCODE = 'undefined_object', HINT = '"penstock keys list" lists those there are.';
    END IF;
    RETURN found_id;
END
$$;
