-- The log: queues, partitions, segments, and what maintenance remembers of them.
--
-- Nothing here is updated on a hot path. A push appends one row to `segments` and updates none, so a transaction that
-- somebody holds open cannot pile up dead versions behind it.

CREATE SCHEMA IF NOT EXISTS penstock;

-- The version of the schema is the highest number.
CREATE TABLE penstock.migrations (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Settings of the whole database: one row, or none as long as all is at its default.
CREATE TABLE penstock.database_settings (
    one                 boolean NOT NULL DEFAULT true,
    create_on_first_use boolean NOT NULL DEFAULT true,
    CONSTRAINT database_settings_pkey PRIMARY KEY (one),
    CONSTRAINT database_settings_is_one_row CHECK (one)
);

-- Constraints and generated columns need these functions before the others are written.
\ir ../api/log/settings.sql
\ir ../internal/common/scoped_settings_problem.sql
\ir ../internal/common/settings_problem.sql
\ir ../internal/common/effective_settings.sql
\ir ../internal/common/name_problem.sql

-- `config` holds what somebody set; `settings` is the same with every default filled in. `priorities` are the levels
-- that partitions of the queue have or had, highest first: pop looks at each without searching for them. `limited_at`
-- is since when the queue allows as many attempts as it does now, so that `verify` can tell what was delivered under
-- another limit. `push_gated`: pushes are paused or limited, so each of them has to ask.
CREATE TABLE penstock.queues (
    queue_id    integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text        NOT NULL,
    description text,
    config      jsonb       NOT NULL DEFAULT '{}',
    settings    jsonb       NOT NULL GENERATED ALWAYS AS (penstock.effective_settings(config)) STORED,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    priorities  smallint[]  NOT NULL DEFAULT '{0}',
    limited_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    push_gated  boolean     NOT NULL GENERATED ALWAYS AS (
        config @> '{"push_paused": true}' OR config ? 'push_rate_limit'
    ) STORED,
    CONSTRAINT queues_name_is_unique UNIQUE (name),
    CONSTRAINT queues_name_is_valid CHECK (penstock.name_problem(name) IS NULL),
    CONSTRAINT queues_config_is_valid CHECK (penstock.settings_problem(config) IS NULL)
);

-- Locked by every push and updated by none: the row is the partition's mutex. A private lane is a partition that one
-- group alone sees (`lane_of`): redriven dead letters go there.
CREATE TABLE penstock.partitions (
    partition_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id     integer     NOT NULL,
    name         text        NOT NULL,
    priority     smallint    NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    lane_of      integer,
    CONSTRAINT partitions_name_is_unique UNIQUE (queue_id, name),
    -- What name_problem says, with built-in functions: a call of it was half of what a new partition costs.
    CONSTRAINT partitions_name_is_valid CHECK (
        lane_of IS NOT NULL
        OR octet_length(name) BETWEEN 1 AND 255 AND name !~ '[[:cntrl:]]' AND left(name, 1) <> '~' AND name <> '*'
    ),
    CONSTRAINT partitions_id_fits_message_id CHECK (partition_id < 4294967296)
);

-- A run of consecutive messages of one partition. Values lie end to end in `body` (or in `body_compressed`, where the
-- queue's compression says so), and `ends` says where each one ends, as little-endian int32: an Arrow column at rest.
-- Where some values are null, a byte per message follows the ends (see null_flags). Keys and headers are packed the
-- same way; a length of zero there means none.
-- `created_at` is the time of every message, or, where small segments were merged, of the newest one: then `run_counts`
-- and `run_times` say how many messages share which time.
-- A segment without a body is a stub: retention dropped its messages and kept its place, so that the head of the
-- partition is never forgotten.
-- There are no CHECKs: PostgreSQL prepares each one again for every insert, which cost a sixth of a push. The functions
-- that write segments refuse what is wrong, and `verify` looks.
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
    CONSTRAINT segments_pkey PRIMARY KEY (partition_id, base_offset)
)
-- Segments of 2 KB and more lie outside their row: Spark's sink publishes by changing keys, and what lies in the row is
-- written again with it. PostgreSQL moves nothing out of smaller rows.
WITH (toast_tuple_target = 2040);
-- What is packed already gains nothing from compression. The other columns depend on the server: see compression.sql.
ALTER TABLE penstock.segments
    ALTER COLUMN body SET STORAGE EXTERNAL,
    ALTER COLUMN ends SET STORAGE EXTERNAL,
    ALTER COLUMN key_ends SET STORAGE EXTERNAL,
    ALTER COLUMN header_ends SET STORAGE EXTERNAL;

-- Partitions whose segment at offset 0 is gone. A REPEATABLE READ caller whose snapshot shows a partition empty would
-- number from 0: while that segment is there its key refuses this, and afterwards the key of this table does.
CREATE TABLE penstock.trimmed (
    partition_id bigint NOT NULL,
    CONSTRAINT trimmed_pkey PRIMARY KEY (partition_id)
);

-- A reader with positions of its own finds a partition gone, and must know whether it had read it to the end. Kept
-- for 30 days, and only of queues that have such a reader.
CREATE TABLE penstock.deleted_partitions (
    partition_id bigint      NOT NULL,
    head_offset  bigint      NOT NULL,
    deleted_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT deleted_partitions_pkey PRIMARY KEY (partition_id)
);

-- When maintenance last looked at all partitions, so that the next pass knows what has come since. One row, or none
-- before the first pass. `began_at` is when the current pass began, `looked_at` when the last complete one began.
CREATE TABLE penstock.maintenance (
    one       boolean     NOT NULL DEFAULT true,
    began_at  timestamptz NOT NULL DEFAULT '-infinity',
    looked_at timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT maintenance_pkey PRIMARY KEY (one),
    CONSTRAINT maintenance_is_one_row CHECK (one)
);
