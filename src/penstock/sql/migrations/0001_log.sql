-- 0001_log: queues, partitions and segments: the log.
--
-- Nothing here is updated on a hot path. A push appends one row to `segments` and updates none, so a
-- transaction that somebody holds open cannot pile up dead versions behind it.

CREATE SCHEMA IF NOT EXISTS penstock;

CREATE TABLE penstock.migrations (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

\ir ../functions/settings.sql
\ir ../functions/settings_problem.sql
\ir ../functions/effective_settings.sql
\ir ../functions/name_problem.sql

-- `config` holds what somebody set; `settings` is the same with every default filled in.
CREATE TABLE penstock.queues (
    queue_id    integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text        NOT NULL,
    description text,
    config      jsonb       NOT NULL DEFAULT '{}',
    settings    jsonb       NOT NULL GENERATED ALWAYS AS (penstock.effective_settings(config)) STORED,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT queues_name_is_unique UNIQUE (name),
    CONSTRAINT queues_name_is_valid CHECK (penstock.name_problem(name) IS NULL),
    CONSTRAINT queues_config_is_valid CHECK (penstock.settings_problem(config) IS NULL)
);

-- Locked by every push and updated by none: the row is the partition's mutex.
CREATE TABLE penstock.partitions (
    partition_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id     integer     NOT NULL,
    name         text        NOT NULL,
    priority     smallint    NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT partitions_name_is_unique UNIQUE (queue_id, name),
    CONSTRAINT partitions_name_is_valid CHECK (penstock.name_problem(name) IS NULL),
    CONSTRAINT partitions_id_fits_message_id CHECK (partition_id < 4294967296)
);

-- A run of consecutive messages of one partition. Values lie end to end in `body` (or in `body_compressed`,
-- where the queue's compression says so), and `ends` says where each one ends, as little-endian int32: an Arrow
-- column at rest. Keys and headers are packed the same way; a length of zero there means none.
-- `created_at` is the time of every message, or, where small segments were merged, of the newest one: then
-- `run_counts` and `run_times` say how many messages share which time.
-- A segment without a body is a stub: retention dropped its messages and kept its place, so that the head of
-- the partition is never forgotten.
CREATE TABLE penstock.segments (
    partition_id    bigint        NOT NULL,
    base_offset     bigint        NOT NULL,
    created_at      timestamptz   NOT NULL,
    count           integer       NOT NULL,
    bytes           integer       NOT NULL,
    body            bytea,
    body_compressed bytea,
    ends            bytea,
    keys            bytea,
    key_ends        bytea,
    headers         bytea,
    header_ends     bytea,
    run_counts      integer[],
    run_times       timestamptz[],
    CONSTRAINT segments_pkey PRIMARY KEY (partition_id, base_offset),
    -- One constraint, and of built-in functions only: PostgreSQL prepares each one anew for every insert.
    CONSTRAINT segments_shape_is_valid CHECK (
        base_offset >= 0
        AND count > 0
        AND base_offset + count <= 4398046511104
        AND octet_length(ends) = 4 * count
    )
)
-- Two rows to a page: more would leave half of it empty, less would put small batches outside the row.
WITH (toast_tuple_target = 4080);
