-- penstock.begin_session(new_hash, of_key, seconds)
--
-- Begins a session of the page for somebody who has shown an API key, and deletes some that are over.
--
-- Parameters: new_hash - the SHA-256 of the session's token, which is 256 random bits; of_key - the key's id; seconds -
-- how long it lasts at most.
-- Returns: when it ends; raises undefined_object if the key is revoked.
-- Calls: require_key. Tables: key_sessions (insert, delete), api_keys (read).
-- Granted to: gateway.
CREATE OR REPLACE FUNCTION penstock.begin_session(new_hash bytea, of_key text, seconds float8)
RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ends timestamptz;
BEGIN
    IF (octet_length(new_hash) = 32 AND seconds BETWEEN 1 AND 2592000) IS NOT TRUE THEN
        RAISE EXCEPTION 'a session has a hash of 32 bytes and lasts from 1 to 2592000 s, and % is not', seconds
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    DELETE FROM penstock.key_sessions s WHERE s.session_hash IN (
        SELECT o.session_hash FROM penstock.key_sessions o
        WHERE o.expires_at < clock_timestamp()
        LIMIT 100
        FOR UPDATE SKIP LOCKED
    );
    INSERT INTO penstock.key_sessions (session_hash, key_id, expires_at)
    SELECT new_hash, k.key_id, least(clock_timestamp() + make_interval(secs => seconds), k.expires_at)
    FROM penstock.api_keys k
    WHERE k.key_id = penstock.require_key(of_key)
    RETURNING expires_at INTO ends;
    RETURN ends;
END
$$;
