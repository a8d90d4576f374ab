-- penstock.end_session(old_hash)
--
-- Ends a session of the page.
--
-- Parameters: old_hash - the SHA-256 of the session's token.
-- Returns: whether there was one.
-- Calls: nothing. Tables: key_sessions (delete).
-- Granted to: gateway.
CREATE OR REPLACE FUNCTION penstock.end_session(old_hash bytea)
RETURNS boolean
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    WITH gone AS (DELETE FROM penstock.key_sessions s WHERE s.session_hash = old_hash RETURNING 1)
    SELECT EXISTS (SELECT 1 FROM gone)
$$;
