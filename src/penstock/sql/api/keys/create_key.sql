-- penstock.create_key(key_id, key_name, secret_hash, grants, expires_at, rate_limit, burst, actor, origin)
--
-- Creates an API key. The secret itself never comes here: whoever creates a key makes it of 256 random bits, and passes
-- its SHA-256.
--
-- Parameters: key_id - the part of the key that may be seen, 12 hexadecimal digits; key_name - unique among keys that are
-- not revoked; secret_hash - 32 bytes; grants - texts such as push:orders-*; expires_at - null for never; rate_limit,
-- burst - requests a second, and at once; null for no limit; actor, origin - who does it and from which address, where
-- that is known better than by the session.
-- Returns: the key without its hash; raises duplicate_object if there is a key of that name.
-- Calls: require_names, require_grants, require_moments, record_act, list_keys. Tables: api_keys (insert).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.create_key(
    key_id text, key_name text, secret_hash bytea, grants text[], expires_at timestamptz DEFAULT NULL,
    rate_limit float8 DEFAULT NULL, burst integer DEFAULT NULL, actor text DEFAULT NULL, origin text DEFAULT NULL
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
BEGIN
    PERFORM penstock.require_names(key_name);
    PERFORM penstock.require_grants(grants);
    PERFORM penstock.require_moments(create_key.expires_at);
    IF (create_key.rate_limit > 0 AND create_key.rate_limit <= 1000000 AND create_key.burst >= 1) IS FALSE
       OR (create_key.rate_limit IS NULL) <> (create_key.burst IS NULL)
    THEN
        RAISE EXCEPTION 'rate_limit is % and must be above 0, up to 1000000 requests a second; burst is % and must be 1 or more; give both or none',
            create_key.rate_limit, create_key.burst
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF create_key.expires_at <= clock_timestamp() THEN
        RAISE EXCEPTION 'expires_at is %, which is in the past', create_key.expires_at
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO penstock.api_keys (key_id, name, secret_hash, grants, rate_limit, burst, created_by, expires_at)
    VALUES (
        create_key.key_id, key_name, create_key.secret_hash, create_key.grants, create_key.rate_limit,
        create_key.burst, coalesce(create_key.actor, 'user:' || session_user), create_key.expires_at
    )
    ON CONFLICT (name) WHERE revoked_at IS NULL DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is a key "%" already', key_name
            USING ERRCODE = 'duplicate_object', HINT = 'Revoke it first, rotate it, or take another name.';
    END IF;
    PERFORM penstock.record_act(
        create_key.actor, 'create_key', key_name,
        jsonb_build_object('key_id', create_key.key_id, 'grants', create_key.grants, 'expires_at', create_key.expires_at),
        create_key.origin, 'ok'
    );
    RETURN QUERY SELECT * FROM penstock.list_keys(true) k WHERE k.id = create_key.key_id;
END
$$;
