-- penstock.find_session(wanted_hash)
--
-- Finds whose session it is.
--
-- Parameters: wanted_hash - the SHA-256 of the session's token.
-- Returns: one row, or none if there is no such session or it is over.
-- Calls: nothing. Tables: key_sessions (read).
-- Granted to: gateway.
CREATE OR REPLACE FUNCTION penstock.find_session(wanted_hash bytea)
RETURNS TABLE (key_id text, expires_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.key_id, s.expires_at FROM penstock.key_sessions s
    WHERE s.session_hash = wanted_hash AND s.expires_at > clock_timestamp()
$$;
