-- penstock.revoke_key(key, actor, origin)
--
-- Revokes an API key, and ends the sessions that were begun with it. Gateways keep keys for a few seconds; each refuses
-- it after that time at the latest.
--
-- Parameters: key - its name or id; actor, origin - as in create_key.
-- Returns: the key; raises undefined_object if there is no such key, or it is revoked.
-- Calls: require_key, record_act, list_keys. Tables: api_keys (update), key_sessions (delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.revoke_key(key text, actor text DEFAULT NULL, origin text DEFAULT NULL)
RETURNS TABLE (
    id text, name text, scopes text[], created_by text, created_at timestamptz, valid_until timestamptz,
    requests_per_second float8, requests_at_once integer, rotated_at timestamptz, last_used_at timestamptz,
    revoked_at timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found_id text := penstock.require_key(key);
BEGIN
    UPDATE penstock.api_keys k SET revoked_at = clock_timestamp() WHERE k.key_id = found_id;
    DELETE FROM penstock.key_sessions s WHERE s.key_id = found_id;
    PERFORM penstock.record_act(
        revoke_key.actor, 'revoke_key', k.name, jsonb_build_object('key_id', found_id), revoke_key.origin, 'ok'
    )
    FROM penstock.api_keys k WHERE k.key_id = found_id;
    RETURN QUERY SELECT * FROM penstock.list_keys(true) l WHERE l.id = found_id;
END
$$;
