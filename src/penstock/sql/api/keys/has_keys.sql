-- penstock.has_keys()
--
-- Says whether there is an API key that is neither revoked nor expired: a gateway that takes keys warns if there is none.
--
-- Parameters: none.
-- Returns: whether there is one.
-- Calls: nothing. Tables: api_keys (read).
-- Granted to: gateway.
CREATE OR REPLACE FUNCTION penstock.has_keys()
RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT 1 FROM penstock.api_keys k
        WHERE k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
    )
$$;
