-- penstock.find_key(wanted_id)
--
-- Finds an API key for a gateway, which checks the secret against the hash and keeps the answer for a few seconds.
--
-- Parameters: wanted_id - the part of a key that may be seen.
-- Returns: one row, or none: also for a key that is revoked or expired.
-- Calls: nothing. Tables: api_keys (read).
-- Granted to: gateway.
CREATE OR REPLACE FUNCTION penstock.find_key(wanted_id text)
RETURNS TABLE (
    id text, name text, secret_hash bytea, previous_hash bytea, previous_until timestamptz, scopes text[],
    valid_until timestamptz, requests_per_second float8, requests_at_once integer
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        k.key_id, k.name, k.secret_hash, k.previous_hash, k.previous_until, k.grants, k.expires_at, k.rate_limit, k.burst
    FROM penstock.api_keys k
    WHERE k.key_id = wanted_id AND k.revoked_at IS NULL
      AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
$$;
