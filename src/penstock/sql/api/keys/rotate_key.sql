-- penstock.rotate_key(key, new_hash, grace, actor, origin)
--
-- Gives an API key a new secret. The old one is valid for a while longer, so that its users can be changed one by one.
-- Sessions that were begun with the old one end.
--
-- Parameters: key - its name or id; new_hash - the SHA-256 of the new secret; grace - for how many seconds the old one
-- is still valid; actor, origin - as in create_key.
-- Returns: the key; raises undefined_object if there is no such key, or it is revoked.
-- Calls: require_key, record_act, list_keys. Tables: api_keys (update), key_sessions (delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.rotate_key(
    key text, new_hash bytea, grace float8 DEFAULT 0, actor text DEFAULT NULL, origin text DEFAULT NULL
)
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
    IF (grace BETWEEN 0 AND 31536000) IS NOT TRUE THEN
        RAISE EXCEPTION 'grace is % s and must be from 0 to 31536000', grace USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE penstock.api_keys k
    SET secret_hash = new_hash, previous_hash = CASE WHEN grace > 0 THEN k.secret_hash END,
        previous_until = CASE WHEN grace > 0 THEN clock_timestamp() + make_interval(secs => grace) END,
        rotated_at = clock_timestamp()
    WHERE k.key_id = found_id;
    DELETE FROM penstock.key_sessions s WHERE s.key_id = found_id;
    PERFORM penstock.record_act(
        rotate_key.actor, 'rotate_key', k.name, jsonb_build_object('key_id', found_id, 'grace', grace),
        rotate_key.origin, 'ok'
    )
    FROM penstock.api_keys k WHERE k.key_id = found_id;
    RETURN QUERY SELECT * FROM penstock.list_keys(true) l WHERE l.id = found_id;
END
$$;
