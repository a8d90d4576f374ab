-- Who may use the gateway, and what they changed: API keys, sessions of the page, and the audit log.

-- An API key. `key_id` is the part of it that may be seen; of the secret there is only the SHA-256, which is enough for
-- 256 random bits. After a rotation `previous_hash` is valid, too, until `previous_until`. `grants` are texts such as
-- push:orders-*, a scope and a pattern of queue names. `rate_limit` is in requests a second, `burst` how many may come at
-- once. `last_used_at` is written about once a minute at most. A revoked key is kept, so that its name can be looked up.
CREATE TABLE penstock.api_keys (
    key_id         text             NOT NULL,
    name           text             NOT NULL,
    secret_hash    bytea            NOT NULL,
    previous_hash  bytea,
    previous_until timestamptz,
    grants         text[]           NOT NULL,
    rate_limit     double precision,
    burst          integer,
    created_by     text             NOT NULL,
    created_at     timestamptz      NOT NULL DEFAULT clock_timestamp(),
    expires_at     timestamptz,
    rotated_at     timestamptz,
    last_used_at   timestamptz,
    revoked_at     timestamptz,
    CONSTRAINT api_keys_pkey PRIMARY KEY (key_id),
    CONSTRAINT api_keys_id_is_valid CHECK (key_id ~ '^[0-9a-f]{12}$'),
    CONSTRAINT api_keys_name_is_valid CHECK (penstock.name_problem(name) IS NULL),
    CONSTRAINT api_keys_hash_is_sha256 CHECK (octet_length(secret_hash) = 32),
    CONSTRAINT api_keys_has_grants CHECK (cardinality(grants) BETWEEN 1 AND 100),
    CONSTRAINT api_keys_rate_is_positive CHECK (rate_limit > 0 AND burst >= 1)
);
CREATE UNIQUE INDEX api_keys_name_is_unique ON penstock.api_keys (name) WHERE revoked_at IS NULL;

-- Somebody who signed in to the page with an API key. The browser has the token, and this is its SHA-256.
CREATE TABLE penstock.key_sessions (
    session_hash bytea       NOT NULL,
    key_id       text        NOT NULL CONSTRAINT key_sessions_key REFERENCES penstock.api_keys ON DELETE CASCADE,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz NOT NULL,
    CONSTRAINT key_sessions_pkey PRIMARY KEY (session_hash)
);
CREATE INDEX key_sessions_by_key ON penstock.key_sessions (key_id);

-- The audit log: one row per administrative act. `actor` is who did it as the gateway knows them, `db_user` the database
-- user that wrote the row, `origin` the address that the request came from. Acts are written in the transaction of what
-- they are about. Each one deletes a few that are too old or too many.
CREATE TABLE penstock.audit_log (
    act_id  bigint      GENERATED ALWAYS AS IDENTITY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor   text        NOT NULL,
    action  text        NOT NULL,
    target  text        NOT NULL,
    details jsonb,
    origin  text,
    result  text        NOT NULL,
    db_user text        NOT NULL,
    CONSTRAINT audit_log_pkey PRIMARY KEY (act_id)
);
