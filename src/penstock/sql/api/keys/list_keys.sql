-- penstock.list_keys(with_revoked)
--
-- Lists the API keys, without their secrets' hashes.
--
-- Parameters: with_revoked - also those that are revoked.
-- Returns: a row per key, by name.
-- Calls: nothing. Tables: api_keys (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.list_keys(with_revoked boolean DEFAULT false)
RETURNS TABLE (
    id text, name text, scopes text[], created_by text, created_at timestamptz, valid_until timestamptz,
    requests_per_second float8, requests_at_once integer, rotated_at timestamptz, last_used_at timestamptz,
    revoked_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        k.key_id, k.name, k.grants, k.created_by, k.created_at, k.expires_at, k.rate_limit, k.burst, k.rotated_at,
        k.last_used_at, k.revoked_at
    FROM penstock.api_keys k
    WHERE with_revoked OR k.revoked_at IS NULL
    ORDER BY k.name COLLATE "C", k.created_at
$$;
