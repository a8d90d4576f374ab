BEGIN;

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
-- penstock.settings()
--
-- Returns the settings of a queue: name, kind, default, bounds and description. Validation, defaults, error messages
-- and documentation are all derived from it.
--
-- Returns: one row per setting, in the order of the documentation.
-- Calls: nothing. Tables: none.
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.settings()
RETURNS TABLE (
    name          text,
    kind          text,
    default_value jsonb,
    minimum       numeric,
    maximum       numeric,
    choices       text[],
    meaning       text
)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    VALUES
    ('lease_time', 'seconds', '300'::jsonb, 0.001, 604800, NULL::text[],
     'how long a claim is held before it expires'),
    ('max_attempts', 'count', '5', 1, 32767, NULL,
     'deliveries before a message becomes a dead letter'),
    ('backoff_initial', 'seconds', '1', 0, 86400, NULL,
     'wait after the first failure'),
    ('backoff_factor', 'factor', '2', 1, 100, NULL,
     'by how much each further wait grows'),
    ('backoff_max', 'seconds', '300', 0, 604800, NULL,
     'the longest wait between two attempts'),
    ('delay', 'seconds', '0', 0, 31536000, NULL,
     'how old a message must be before it is delivered'),
    ('quiet_period', 'seconds', '0', 0, 31536000, NULL,
     'how long a partition must have been without pushes before it is delivered (alias: window_buffer)'),
    ('durable_acks', 'boolean', 'true', NULL, NULL, '{true,false}',
     'whether an ack waits until it is on disk; false: a crash of the server may deliver again what was acknowledged last'),
    ('retention_time', 'seconds or null', 'null', 0.001, 3155760000, NULL,
     'messages older than this are dropped; null keeps them for ever'),
    ('retention_bytes', 'count or null', 'null', 1, 1125899906842624, NULL,
     'the oldest messages of a partition that holds more than this are dropped; null means no limit'),
    ('retention_rule', 'choice', '"keep_until_consumed"', NULL, NULL, '{keep_until_consumed,drop_and_count}',
     'whether retention waits for the slowest group, or drops and counts what that group missed'),
    ('keep_until_archived', 'choice', '"auto"', NULL, NULL, '{auto,on,off}',
     'whether retention waits for `penstock archive`; auto: once an archive of the queue was begun'),
    ('max_message_bytes', 'count', '1048576', 1, 268435456, NULL,
     'the largest value a message may have'),
    ('compression', 'choice', '"auto"', NULL, NULL, '{auto,on,off}',
     'auto: lz4 where the server has it, else none; on: the best the server has; off: none'),
    ('spread', 'count', '1', 1, 65536, NULL,
     'over how many partitions pushes without a partition are spread'),
    ('dedupe_window', 'seconds', '0', 0, 31536000, NULL,
     'for how long a message''s dedupe_id keeps others with the same id out of its partition; 0 takes no ids')
$$;
-- penstock.settings_problem(config)
--
-- Checks the configuration of a queue.
--
-- Parameters: config - the settings, as a JSON object.
-- Returns: the first problem, as an error text, or null.
-- Calls: settings. Tables: none.
CREATE OR REPLACE FUNCTION penstock.settings_problem(config jsonb)
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    given   record;
    setting record;
    number  numeric;
BEGIN
    IF config IS NULL OR jsonb_typeof(config) <> 'object' THEN
        RETURN 'the configuration must be a JSON object';
    END IF;
    FOR given IN SELECT e.key, e.value FROM jsonb_each(config) e ORDER BY e.key LOOP
        SELECT s.* INTO setting FROM penstock.settings() s WHERE s.name = given.key;
        IF NOT FOUND THEN
            RETURN format(
                'unknown setting %s; the known ones are %s',
                to_json(given.key),
                (SELECT string_agg(s.name, ', ') FROM penstock.settings() s)
            );
        END IF;
        CONTINUE WHEN given.value = 'null' AND setting.kind LIKE '%or null';
        IF setting.kind = 'choice' THEN
            IF jsonb_typeof(given.value) <> 'string' OR given.value #>> '{}' <> ALL (setting.choices) THEN
                RETURN format(
                    'setting %s is %s but must be one of %s',
                    given.key, given.value, array_to_string(setting.choices, ', ')
                );
            END IF;
            CONTINUE;
        END IF;
        IF setting.kind = 'boolean' THEN
            IF jsonb_typeof(given.value) <> 'boolean' THEN
                RETURN format('setting %s is %s but must be true or false', given.key, given.value);
            END IF;
            CONTINUE;
        END IF;
        IF jsonb_typeof(given.value) <> 'number' THEN
            RETURN format('setting %s is %s but must be a number (%s)', given.key, given.value, setting.kind);
        END IF;
        number := (given.value #>> '{}')::numeric;
        IF number NOT BETWEEN setting.minimum AND setting.maximum THEN
            RETURN format(
                'setting %s is %s but must be from %s to %s',
                given.key, number, setting.minimum, setting.maximum
            );
        END IF;
        IF setting.kind LIKE 'count%' AND number <> trunc(number) THEN
            RETURN format('setting %s is %s but must be a whole number', given.key, number);
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
-- penstock.effective_settings(config)
--
-- Fills in the default of every setting that a queue's configuration leaves out.
--
-- Parameters: config - the settings that were set.
-- Returns: all settings as one JSON object.
-- Calls: settings. Tables: none.
CREATE OR REPLACE FUNCTION penstock.effective_settings(config jsonb)
RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT jsonb_object_agg(s.name, s.default_value) || config FROM penstock.settings() s
$$;
-- penstock.name_problem(name)
--
-- Checks the name of a queue or a partition.
--
-- Parameters: name - 1 to 255 bytes without control characters (U+0000 to U+001F and U+007F to U+009F, in every
-- locale); '*' means any partition and is no name, and a leading '~' is reserved for private lanes.
-- Returns: the problem, as an error text, or null.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.name_problem(name text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN name IS NULL THEN 'a name is missing'
        WHEN octet_length(name) NOT BETWEEN 1 AND 255 THEN
            format('a name must have 1 to 255 bytes and this one has %s', octet_length(name))
        WHEN name ~ '[\u0001-\u001f\u007f-\u009f]' THEN
            format('a name must have no control characters and %s has some', to_json(name))
        WHEN name LIKE '~%' THEN 'names that begin with "~" are kept for private lanes'
        WHEN name = '*' THEN 'the name "*" means any partition and cannot be given to one'
    END
$$;

-- `config` holds what somebody set; `settings` is the same with every default filled in. `priorities` are the levels
-- that partitions of the queue have or had, highest first: pop looks at each without searching for them. `limited_at`
-- is since when the queue allows as many attempts as it does now, so that `verify` can tell what was delivered under
-- another limit.
CREATE TABLE penstock.queues (
    queue_id    integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text        NOT NULL,
    description text,
    config      jsonb       NOT NULL DEFAULT '{}',
    settings    jsonb       NOT NULL GENERATED ALWAYS AS (penstock.effective_settings(config)) STORED,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    priorities  smallint[]  NOT NULL DEFAULT '{0}',
    limited_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
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

-- Consumer groups: who has read how far, who holds what, and what may be claimed now.
--
-- The state of a (group, partition) is its newest journal row. Rows are appended and never updated, so consuming
-- leaves no dead versions behind, however long somebody holds a transaction open.

-- penstock.group_settings_problem(config)
--
-- Checks the configuration of a group. A group can override those settings of its queue that concern consuming.
--
-- Parameters: config - the settings, as a JSON object.
-- Returns: the first problem, as an error text, or null.
-- Calls: settings_problem. Tables: none.
CREATE OR REPLACE FUNCTION penstock.group_settings_problem(config jsonb)
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    known   text[] := ARRAY['lease_time', 'max_attempts', 'backoff_initial', 'backoff_factor', 'backoff_max',
                            'delay', 'quiet_period', 'durable_acks'];
    unknown text;
BEGIN
    IF config IS NULL OR jsonb_typeof(config) <> 'object' THEN
        RETURN 'the configuration must be a JSON object';
    END IF;
    SELECT k INTO unknown FROM jsonb_object_keys(config) k WHERE k <> ALL (known) ORDER BY k LIMIT 1;
    IF FOUND THEN
        RETURN format('unknown setting %s of a group; the known ones are %s',
                      to_json(unknown), array_to_string(known, ', '));
    END IF;
    RETURN penstock.settings_problem(config);
END
$$;

-- `enrolled_to`: the last partition, of those that existed before the group, that is enrolled; null: all of them are.
-- `enrol_again`: some were locked in this round, so another one follows. `awaited`: the transactions that held the
-- shared lock of the queue when the group could first be seen: they may push without seeing it. Null before they were
-- looked up, empty after all of them have ended. `created_in`: the transaction that created the group; until it ends,
-- nobody else can see the group.
-- An external group is read by a reader that keeps its own positions, as Spark does in its checkpoint, and reports
-- them. It has lag and holds retention like any other, and nobody can pop with it. `lineage` is the reader's lineage of
-- snapshots. A reader that takes the group over is written here, and the former one gets an error: with two readers,
-- retention would drop messages that the slower one has not read.
-- `limited_at`: as in `queues`.
CREATE TABLE penstock.consumer_groups (
    group_id     integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id     integer     NOT NULL,
    name         text        NOT NULL,
    mode         text        NOT NULL DEFAULT 'ordered',
    config       jsonb       NOT NULL DEFAULT '{}',
    subscription text        NOT NULL DEFAULT 'all',
    from_time    timestamptz,
    enrolled_to  bigint,
    enrol_again  boolean     NOT NULL DEFAULT false,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    awaited      text[],
    created_in   xid8,
    lineage      bigint,
    limited_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT consumer_groups_name_is_unique UNIQUE (queue_id, name),
    CONSTRAINT consumer_groups_name_is_valid CHECK (penstock.name_problem(name) IS NULL),
    CONSTRAINT consumer_groups_config_is_valid CHECK (penstock.group_settings_problem(config) IS NULL),
    CONSTRAINT consumer_groups_mode_is_known CHECK (mode IN ('ordered', 'shared', 'external')),
    CONSTRAINT consumer_groups_subscription_is_known CHECK (
        subscription IN ('all', 'new', 'time') AND (subscription = 'time') = (from_time IS NOT NULL)
    )
);
CREATE INDEX consumer_groups_enrolling ON penstock.consumer_groups (group_id) WHERE enrolled_to IS NOT NULL;

-- Where a group with a subscription other than 'all' began in a partition. Only `verify` reads it: messages that were
-- pushed after the group was created must not be below.
CREATE TABLE penstock.beginnings (
    group_id     integer NOT NULL,
    partition_id bigint  NOT NULL,
    base_offset  bigint  NOT NULL,
    CONSTRAINT beginnings_pkey PRIMARY KEY (group_id, partition_id)
);

-- The letters of `state` are those of state_name, and no others: i(dle), r(eady, in the ready list), c(laimed),
-- t(imed, waits for due_at), p(arked, looked at once more at due_at). `attempt` counts the deliveries of the message
-- at `committed`. After a failure, messages below `narrow_to` are delivered one by one; each of them was delivered
-- `narrow_attempt` times before. `claimed_at` is when a claim was handed out, in the rows that renew it or
-- acknowledge a part of it: the sweep trims the first one.
CREATE TABLE penstock.journal (
    group_id       integer     NOT NULL,
    partition_id   bigint      NOT NULL,
    version        bigint      NOT NULL,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    state          "char"      NOT NULL,
    committed      bigint      NOT NULL,
    claimed_to     bigint      NOT NULL,
    skipped        bigint      NOT NULL DEFAULT 0,
    attempt        smallint    NOT NULL DEFAULT 0,
    narrow_attempt smallint    NOT NULL DEFAULT 0,
    narrow_to      bigint,
    ready_seq      bigint,
    due_at         timestamptz,
    lease_id       uuid,
    consumer       text,
    acked_at       timestamptz,
    first_error    text,
    last_error     text,
    claimed_at     timestamptz,
    CONSTRAINT journal_pkey PRIMARY KEY (group_id, partition_id, version)
)
WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX journal_due ON penstock.journal (due_at) WHERE due_at IS NOT NULL;
-- Parked partitions are due within milliseconds. One that is due later was parked before the clock went back.
CREATE INDEX journal_parked ON penstock.journal (due_at) WHERE state = 'p';

-- The ready list: the partitions that may be claimed now. Taken from the front with SKIP LOCKED, and deleted. In a
-- shared group an entry may be that of a range (from `lo` up to `hi`) that was handed out or set aside before.
CREATE SEQUENCE penstock.ready_seq;
CREATE TABLE penstock.ready (
    group_id     integer  NOT NULL,
    priority     smallint NOT NULL,
    seq          bigint   NOT NULL,
    partition_id bigint   NOT NULL,
    lo           bigint,
    hi           bigint,
    attempt      smallint NOT NULL DEFAULT 0,
    first_error  text,
    last_error   text,
    CONSTRAINT ready_pkey PRIMARY KEY (group_id, priority, seq)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ready_ranges ON penstock.ready (group_id, partition_id, lo) WHERE lo IS NOT NULL;

-- The ranges of shared groups that somebody holds, or that wait for a backoff to end (no lease). A row is its own
-- mutex: it is inserted by a pop and deleted by whoever ends it, ack, nack or sweep. `alone`: it was handed out with
-- one message, so that one is known to be what failed. `whole`: no part of it was acknowledged by itself, so there is
-- no other row of its lease.
CREATE TABLE penstock.claims (
    group_id     integer     NOT NULL,
    partition_id bigint      NOT NULL,
    lo           bigint      NOT NULL,
    hi           bigint      NOT NULL,
    attempt      smallint    NOT NULL,
    lease_id     uuid,
    due_at       timestamptz NOT NULL,
    consumer     text,
    claimed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    first_error  text,
    last_error   text,
    alone        boolean     NOT NULL DEFAULT false,
    whole        boolean     NOT NULL DEFAULT true,
    CONSTRAINT claims_pkey PRIMARY KEY (group_id, partition_id, lo)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX claims_due ON penstock.claims (due_at);

-- What retention dropped of a range that a shared group had set aside. The journal counts what its frontier passed.
CREATE TABLE penstock.skips (
    group_id     integer NOT NULL,
    partition_id bigint  NOT NULL,
    lo           bigint  NOT NULL,
    hi           bigint  NOT NULL,
    CONSTRAINT skips_pkey PRIMARY KEY (group_id, partition_id, lo),
    CONSTRAINT skips_range_is_not_empty CHECK (lo < hi)
);

-- Pushes of callers above READ COMMITTED, who may see an old state of the groups: the next sweep wakes the groups.
CREATE TABLE penstock.late_wakeups (
    partition_id bigint NOT NULL,
    base_offset  bigint NOT NULL,
    CONSTRAINT late_wakeups_pkey PRIMARY KEY (partition_id, base_offset)
);

-- Messages whose attempts are used up, as copies: retention does not delete them. `traceback` is that of the last
-- failure in the handler. If a row of a flow that is made of several messages fails, all of them become dead letters;
-- redriven, they must make only that row again, so `row_ids` are the rows that each failed with.
CREATE TABLE penstock.dead_letters (
    dead_letter_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id       integer     NOT NULL,
    group_id       integer     NOT NULL,
    partition_id   bigint      NOT NULL,
    message_offset bigint      NOT NULL,
    created_at     timestamptz NOT NULL,
    payload        bytea,
    key            text,
    headers        jsonb,
    reason         text        NOT NULL,
    attempts       smallint    NOT NULL,
    first_error    text,
    last_error     text,
    consumer       text,
    died_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    traceback      text,
    row_ids        text[]
);
CREATE INDEX dead_letters_by_group ON penstock.dead_letters (group_id, dead_letter_id);

-- The sweep: who sweeps, and timers that failed.

-- Has no rows: a sweep locks the table. Not an advisory lock, which everybody who may log in can take.
CREATE TABLE penstock.sweep_lock ();

-- Timers that failed and were postponed, so that they do not hold up others. `place` identifies the timer within its
-- kind: the version of a journal row, the first offset of a claim or late wake-up, the id of a scheduled message. A
-- row is deleted when its timer succeeds or no longer exists. For the kind `maintenance`, partition_id is the
-- partition in which maintenance failed, 0 for work that is not of one partition; the row is deleted when maintenance
-- succeeds there.
CREATE TABLE penstock.failing_timers (
    kind         text        NOT NULL,
    group_id     integer     NOT NULL,
    partition_id bigint      NOT NULL,
    place        bigint      NOT NULL,
    since        timestamptz NOT NULL DEFAULT clock_timestamp(),
    failures     integer     NOT NULL DEFAULT 1,
    retry_at     timestamptz NOT NULL,
    sqlstate     text        NOT NULL,
    error        text        NOT NULL,
    CONSTRAINT failing_timers_pkey PRIMARY KEY (kind, group_id, partition_id, place),
    CONSTRAINT failing_timers_kind_is_known CHECK (
        kind IN ('journal', 'claim', 'late_wakeup', 'enrolment', 'scheduled', 'sweep', 'maintenance')
    )
);

-- Pushing: what a push may have beyond messages: a stamp to be repeated safely, a delay, dedupe ids.

-- Scheduled messages: a packed segment that has no offset until it is due. The sweep deletes the row
-- and appends the segment in one transaction, so it gets its offset once. Messages with a
-- dedupe id have it in `dedupe_ids`, and their position in the segment in `dedupe_positions`.
CREATE SEQUENCE penstock.scheduled_seq;
CREATE TABLE penstock.scheduled (
    scheduled_id bigint      NOT NULL,
    queue_id     integer     NOT NULL,
    partition_id bigint      NOT NULL,
    due_at       timestamptz NOT NULL,
    created_at   timestamptz NOT NULL,
    count        integer     NOT NULL,
    bytes        integer     NOT NULL,
    body         bytea       NOT NULL,
    ends         bytea       NOT NULL,
    keys         bytea,
    key_ends     bytea,
    headers      bytea,
    header_ends  bytea,
    dedupe_ids       text[],
    dedupe_positions integer[],
    CONSTRAINT scheduled_pkey PRIMARY KEY (scheduled_id)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX scheduled_due ON penstock.scheduled (due_at, scheduled_id);
CREATE INDEX scheduled_by_queue ON penstock.scheduled (queue_id, due_at, scheduled_id);

-- The ids under which messages of a partition count once. `seen_at` is the time of the message, and the window is
-- compared with it: a row that outlived its window means nothing. While its message is scheduled a row has no offset
-- but `scheduled_id`, and `seen_at` is infinity: its window begins when the message gets its offset.
CREATE TABLE penstock.dedupe_ids (
    partition_id   bigint      NOT NULL,
    dedupe_id      text        NOT NULL,
    queue_id       integer     NOT NULL,
    seen_at        timestamptz NOT NULL,
    message_offset bigint,
    scheduled_id   bigint,
    CONSTRAINT dedupe_ids_pkey PRIMARY KEY (partition_id, dedupe_id)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX dedupe_ids_by_age ON penstock.dedupe_ids (queue_id, seen_at);

-- What pushes answered, so that a push whose answer was lost can be repeated: one row per call, whatever it pushed.
-- Pushes of one producer commit in any order, because it has many connections; so each is known by itself, and a gap
-- in the sequence means nothing. Most pushes are one segment, and their rows are small: its place, and its time, which
-- is `pushed_at`. The arrays are for those of many, and `answer` is the longer one of push_with_options.
CREATE TABLE penstock.producers (
    producer      uuid        NOT NULL,
    sequence      bigint      NOT NULL,
    pushed_at     timestamptz NOT NULL,
    partition_id  bigint,
    first_offset  bigint,
    count         integer,
    partition_ids bigint[],
    first_offsets bigint[],
    counts        integer[],
    times         timestamptz[],
    answer        jsonb,
    CONSTRAINT producers_pkey PRIMARY KEY (producer, sequence)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX producers_by_age ON penstock.producers (pushed_at);

-- Staging: what Spark's sink and source keep: staged segments, published epochs, and how far queries have read.
--
-- A staged segment lies in `segments` under a negative partition id, that of its stage, and no reader looks there.
-- Publishing changes its key and nothing else, so the payload is written once.

-- A stage is what one attempt of one task writes. It is removed when its epoch is published, or when it was given up.
CREATE TABLE penstock.stages (
    stage_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    writer     text        NOT NULL,
    run        text        NOT NULL,
    epoch      bigint      NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX stages_by_writer ON penstock.stages (writer, epoch);

-- The queues and partitions of staged segments, a row per call: segment `first_ordinal` + i goes to the i-th names.
CREATE TABLE penstock.staged (
    stage_id        bigint      NOT NULL,
    first_ordinal   bigint      NOT NULL,
    queue_names     text[]      NOT NULL,
    partition_names text[]      NOT NULL,
    counts          integer[]   NOT NULL,
    staged_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT staged_pkey PRIMARY KEY (stage_id, first_ordinal)
);

-- The runs of a writer, in the order in which they were first seen: only the newest may publish. `owner` is who began
-- it.
CREATE TABLE penstock.sink_runs (
    writer     text        NOT NULL,
    run        text        NOT NULL,
    run_number bigint      GENERATED ALWAYS AS IDENTITY,
    begun_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    owner      name        DEFAULT session_user,
    CONSTRAINT sink_runs_pkey PRIMARY KEY (writer, run)
);

-- The ledger: which epochs are published, and how far their sources were read. `target` is the queue that the sink
-- was given, empty where each row names its own; `reading` the offsets of all sources as Spark's checkpoint has them,
-- where the sink could read it; `queues` those that the query has written to so far.
CREATE TABLE penstock.sink_commits (
    writer       text        NOT NULL,
    epoch        bigint      NOT NULL,
    run          text        NOT NULL,
    sources      bigint[]    NOT NULL,
    segments     bigint      NOT NULL,
    messages     bigint      NOT NULL,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    target       text,
    reading      text,
    queues       text[],
    CONSTRAINT sink_commits_pkey PRIMARY KEY (writer, epoch)
);
CREATE INDEX sink_commits_by_time ON penstock.sink_commits (published_at);

-- How far a streaming query reads with one of its batches. `partition_ids`, `starts` and `ends` are what the batch
-- reads; `all_ids` and `all_positions`, where there, the positions of all partitions after it. Positions of a snapshot
-- without them are those of its parent, moved by what it reads. The token identifies a checkpoint of another database.
CREATE TABLE penstock.snapshots (
    snapshot_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token         text        NOT NULL DEFAULT left(gen_random_uuid()::text, 8),
    parent        bigint      NOT NULL,
    lineage       bigint      NOT NULL,
    depth         bigint      NOT NULL,
    published     boolean     NOT NULL DEFAULT false,
    partition_ids bigint[]    NOT NULL,
    starts        bigint[]    NOT NULL,
    ends          bigint[]    NOT NULL,
    all_ids       bigint[],
    all_positions bigint[],
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX snapshots_by_lineage ON penstock.snapshots (lineage, depth);
-- The snapshot after another one is looked for whether it is known to be published or not.
CREATE INDEX snapshots_by_parent ON penstock.snapshots (parent) WHERE parent > 0;

-- Which snapshots an epoch reads: written by the tasks that read, read by the commit of those that write.
CREATE TABLE penstock.epoch_sources (
    writer      text        NOT NULL,
    epoch       bigint      NOT NULL,
    run         text        NOT NULL,
    snapshot_id bigint      NOT NULL,
    noted_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT epoch_sources_pkey PRIMARY KEY (writer, epoch, run, snapshot_id)
);

-- Flows that run on Spark: what they are made of, their status, and the dead letters of their epochs.
--
-- Nothing here has a row per message, except for a message that failed. The status of a flow is written at most once
-- a second.

-- `shape` is what the checkpoint depends on: a flow of another shape cannot go on with it. `writer` is the query that
-- the checkpoint belongs to, known from its first epoch on: no other one may publish for this flow.
CREATE TABLE penstock.flows (
    name          text        NOT NULL,
    flow_type     text        NOT NULL,
    sources       text[]      NOT NULL,
    outputs       text[]      NOT NULL,
    shape         text        NOT NULL,
    checkpoint    text        NOT NULL,
    writer        text,
    paused        boolean     NOT NULL DEFAULT false,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT flows_pkey PRIMARY KEY (name),
    CONSTRAINT flows_name_is_valid CHECK (penstock.name_problem(name) IS NULL),
    CONSTRAINT flows_type_is_known CHECK (flow_type IN ('DATA_SOURCE', 'TRANSFORM', 'DATA_SINK'))
);

-- The registry: what a flow is made of, in its order, and where the code of each part comes from.
CREATE TABLE penstock.actions (
    flow_name     text        NOT NULL,
    action_name   text        NOT NULL,
    position      integer     NOT NULL,
    flow_type     text        NOT NULL,
    action_class  text        NOT NULL,
    plugin        text        NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT actions_pkey PRIMARY KEY (flow_name, action_name)
);
CREATE INDEX actions_by_class ON penstock.actions (action_class);

-- The status of each flow, from its supervisor's last heartbeat. Updated in place, and rarely; the free space keeps
-- that cheap. `late_rows` is how many rows came behind the watermark, so that Spark dropped them.
CREATE TABLE penstock.flow_states (
    flow_name       text             NOT NULL,
    supervisor      text             NOT NULL,
    state           text             NOT NULL,
    since           timestamptz      NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at    timestamptz      NOT NULL DEFAULT clock_timestamp(),
    failures        integer          NOT NULL DEFAULT 0,
    error           text,
    retry_at        timestamptz,
    epoch           bigint,
    epoch_at        timestamptz,
    rows_per_second double precision NOT NULL DEFAULT 0,
    late_rows       bigint           NOT NULL DEFAULT 0,
    CONSTRAINT flow_states_pkey PRIMARY KEY (flow_name),
    CONSTRAINT flow_states_state_is_known CHECK (
        state IN ('starting', 'running', 'backing off', 'failed', 'paused', 'stopped', 'finished')
    )
)
WITH (fillfactor = 50);

-- Dead letters of an epoch that is not published. The messages themselves are still in the log. One that a source
-- found counts whichever attempt of its task found it: it depends on nothing but the message. One of a sink counts with
-- its stage. A message that is archived and gone from the log cannot be copied from there: what its dead letter needs
-- (`payload` to `created_at`) is stored by the task that has read it. `row_ids`: as in `dead_letters`.
CREATE TABLE penstock.staged_dead_letters (
    stage_id       bigint      NOT NULL,
    partition_id   bigint      NOT NULL,
    message_offset bigint      NOT NULL,
    group_id       integer     NOT NULL,
    of_source      boolean     NOT NULL,
    reason         text        NOT NULL,
    error          text,
    payload        bytea,
    key            text,
    headers        jsonb,
    created_at     timestamptz,
    row_ids        text[],
    CONSTRAINT staged_dead_letters_pkey PRIMARY KEY (stage_id, partition_id, message_offset)
);

-- Messages at which a step of a flow fails: its source makes dead letters of them and hands them to nobody.
CREATE TABLE penstock.poison (
    flow_name      text        NOT NULL,
    partition_id   bigint      NOT NULL,
    message_offset bigint      NOT NULL,
    reason         text        NOT NULL,
    error          text,
    found_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT poison_pkey PRIMARY KEY (flow_name, partition_id, message_offset)
);

-- The archive: which ranges of which partitions lie in Parquet files, so that the log and its archive are read as one.
--
-- Nothing here has a row per message: a range is as much of a partition as one row group of a file holds.

-- A run of `penstock archive`, known before it writes its first file, so that the files it leaves behind can be told
-- from those of others. It counts once `recorded_at` is set. A run that was given up can never be recorded.
CREATE TABLE penstock.archives (
    archive_id  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id    integer     NOT NULL,
    run         text        NOT NULL DEFAULT gen_random_uuid()::text,
    location    text        NOT NULL,
    given_up    boolean     NOT NULL DEFAULT false,
    begun_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    recorded_at timestamptz,
    CONSTRAINT archives_run_is_unique UNIQUE (run)
);
CREATE INDEX archives_by_queue ON penstock.archives (queue_id, archive_id);

-- A file of a run, by its path below the run's location.
CREATE TABLE penstock.archive_files (
    file_id    bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    archive_id bigint  NOT NULL,
    path       text    NOT NULL,
    bytes      bigint  NOT NULL,
    checksum   text    NOT NULL
);
CREATE INDEX archive_files_by_archive ON penstock.archive_files (archive_id);

-- What is archived of a partition: the messages from `start_offset` to `stop_offset` are the rows from `first_row` on
-- of one row group of a file. `unbroken_from` is the first offset from which on nothing is missing up to here.
CREATE TABLE penstock.archived (
    partition_id  bigint      NOT NULL,
    start_offset  bigint      NOT NULL,
    stop_offset   bigint      NOT NULL,
    unbroken_from bigint      NOT NULL,
    file_id       bigint      NOT NULL,
    row_group     integer     NOT NULL,
    first_row     bigint      NOT NULL,
    bytes         bigint      NOT NULL,
    first_time    timestamptz NOT NULL,
    last_time     timestamptz NOT NULL,
    CONSTRAINT archived_pkey PRIMARY KEY (partition_id, start_offset),
    CONSTRAINT archived_is_a_range CHECK (0 <= unbroken_from AND unbroken_from <= start_offset AND start_offset < stop_offset)
);

INSERT INTO penstock.migrations (number, name) VALUES (1, 'first');

SET LOCAL check_function_bodies = off;

-- How columns are compressed that gain by it: with lz4 where this server has it, not at all where it has only pglz,
-- which costs more than it gains. Applied by every migrate, so that a server that gained lz4 since is used to the
-- full.

DO $$
DECLARE
    lz4 boolean := EXISTS (
        SELECT 1 FROM pg_catalog.pg_settings s
        WHERE s.name = 'default_toast_compression' AND 'lz4' = ANY (s.enumvals)
    );
    wanted record;
BEGIN
    EXECUTE format(
        'CREATE OR REPLACE FUNCTION penstock.lz4_available() RETURNS boolean '
        'LANGUAGE sql IMMUTABLE PARALLEL SAFE AS %L',
        'SELECT ' || lz4
    );
    -- Only what is not so yet: to alter a table waits for all who use it, and makes all others wait behind.
    FOR wanted IN
        SELECT w.*
        FROM (VALUES
            ('segments', 'keys', lz4), ('segments', 'headers', lz4), ('segments', 'body_compressed', true),
            ('scheduled', 'body', lz4)
        ) w (relation, column_name, compressed)
        JOIN pg_catalog.pg_attribute a
            ON a.attrelid = format('penstock.%I', w.relation)::regclass AND a.attname = w.column_name
        WHERE a.attstorage <> CASE WHEN w.compressed THEN 'x' ELSE 'e' END::"char"
           OR w.compressed AND lz4 AND a.attcompression <> 'l'
    LOOP
        EXECUTE format(
            'ALTER TABLE penstock.%I ALTER COLUMN %I SET STORAGE %s',
            wanted.relation, wanted.column_name, CASE WHEN wanted.compressed THEN 'EXTENDED' ELSE 'EXTERNAL' END
        );
        IF wanted.compressed AND lz4 THEN
            EXECUTE format(
                'ALTER TABLE penstock.%I ALTER COLUMN %I SET COMPRESSION lz4', wanted.relation, wanted.column_name
            );
        END IF;
    END LOOP;
END
$$;

-- penstock.archive_ranges(queue_name, before, partition_names)
--
-- Returns the ranges of a queue that can be archived now: in each partition from the end of its archive, or from the
-- floor, up to the end of the last segment that is older than `before`. Only whole segments are archived, so that
-- they can be dropped afterwards.
--
-- Parameters: before - null for all messages; partition_names - null for all partitions. Private lanes are left out.
-- Returns: a row per partition that has something to archive, by id.
-- Calls: find_queue, find_partition, archived_to, partition_span, offset_at. Tables: partitions, segments (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.archive_ranges(
    queue_name text, before timestamptz DEFAULT NULL, partition_names text[] DEFAULT NULL
)
RETURNS TABLE (partition_id bigint, partition_name text, start_offset bigint, stop_offset bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    queue  integer := penstock.find_queue(queue_name);
    wanted bigint[] := ARRAY(SELECT penstock.find_partition(queue_name, n) FROM unnest(partition_names) n);
BEGIN
    RETURN QUERY
    SELECT p.partition_id, p.name, r.start_offset, r.stop_offset
    FROM penstock.partitions p
    CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
    CROSS JOIN LATERAL (
        SELECT
            greatest(penstock.archived_to(p.partition_id), s.floor_offset) AS start_offset,
            CASE WHEN before IS NULL THEN s.head_offset ELSE penstock.offset_at(p.partition_id, before) END AS reached
    ) w
    CROSS JOIN LATERAL (
        SELECT w.start_offset, CASE WHEN w.reached >= s.head_offset THEN s.head_offset ELSE (
            SELECT g.base_offset FROM penstock.segments g
            WHERE g.partition_id = p.partition_id AND g.base_offset <= w.reached
            ORDER BY g.base_offset DESC
            LIMIT 1
        ) END AS stop_offset
    ) r
    WHERE p.queue_id = queue AND p.lane_of IS NULL
      AND (partition_names IS NULL OR p.partition_id = ANY (wanted)) AND r.start_offset < r.stop_offset
    ORDER BY p.partition_id;
END
$$;

-- penstock.archived_at(partition_ids, moment)
--
-- Finds a time in the archive of partitions, as far as that is possible without reading the files: the first range
-- below the floor of the log with a message that is not older than `moment`.
--
-- Parameters: partition_ids, moment.
-- Returns: a row per partition that has such a range: its offsets, whether none of its messages is older (then the
-- first one is the answer), and its place in the files, as in plan_archived.
-- Calls: partition_span. Tables: archived, archive_files, archives (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.archived_at(partition_ids bigint[], moment timestamptz)
RETURNS TABLE (
    partition_id bigint, start_offset bigint, stop_offset bigint, bytes bigint,
    location text, path text, file_id bigint, row_group integer, first_row bigint, begins_there boolean
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
    SELECT
        a.partition_id, a.start_offset, a.stop_offset, a.bytes, v.location, f.path, f.file_id, a.row_group, a.first_row,
        a.first_time >= moment
    FROM unnest(partition_ids) w (partition_id)
    CROSS JOIN LATERAL penstock.partition_span(w.partition_id) s
    CROSS JOIN LATERAL (
        -- Times never go back, so this is the one that holds the moment, or the first after it.
        SELECT a.* FROM penstock.archived a
        WHERE a.partition_id = w.partition_id AND a.last_time >= moment AND a.start_offset < s.floor_offset
        ORDER BY a.start_offset
        LIMIT 1
    ) a
    JOIN penstock.archive_files f ON f.file_id = a.file_id
    JOIN penstock.archives v ON v.archive_id = f.archive_id
$$;

-- penstock.archived_floors(partition_ids, floors)
--
-- Returns the offset from which each partition can be read without a gap if its archive is read too.
--
-- Parameters: parallel arrays; floors - the floor of each partition's log.
-- Returns: for each partition, in the order given, the first offset of its archive where the archive reaches up to
-- the log, else the floor.
-- Calls: nothing. Tables: archives, archived (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.archived_floors(partition_ids bigint[], floors bigint[])
RETURNS bigint[]
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM penstock.archives) THEN
        RETURN floors;
    END IF;
    RETURN (
        SELECT array_agg(least(w.floor, a.unbroken_from) ORDER BY w.position)
        FROM unnest(partition_ids, floors) WITH ORDINALITY w (partition_id, floor, position)
        LEFT JOIN LATERAL (
            SELECT CASE WHEN a.stop_offset >= w.floor THEN a.unbroken_from END AS unbroken_from
            FROM penstock.archived a
            WHERE a.partition_id = w.partition_id
            ORDER BY a.start_offset DESC
            LIMIT 1
        ) a ON true
    );
END
$$;

-- penstock.begin_archive(queue_name, location)
--
-- Begins an archive run. Takes the queue's archive lock until this connection ends, and gives up all runs that were
-- begun and never recorded: a process that lost its connection, and with it the lock, can no longer record its run.
--
-- Parameters: location - where the files will be.
-- Returns: the name of the run, and the names and locations of the runs that were given up, whose files are to be
-- removed. Raises object_in_use while another connection archives the queue.
-- Calls: require_read_committed, find_queue. Tables: archives (insert, update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.begin_archive(queue_name text, location text)
RETURNS TABLE (run text, left_runs text[], left_locations text[])
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    queue integer := penstock.find_queue(queue_name);
BEGIN
    PERFORM penstock.require_read_committed('begin_archive');
    IF coalesce(begin_archive.location, '') = '' THEN
        RAISE EXCEPTION 'location is empty: give the folder or URL where the files will be'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The class of the lock: see queue_lock_class.
    IF NOT pg_try_advisory_lock(1885695605, queue) THEN
        RAISE EXCEPTION 'queue "%" is being archived by another process', queue_name
            USING ERRCODE = 'object_in_use', HINT = 'Wait until it has ended.';
    END IF;
    UPDATE penstock.archives a SET given_up = true WHERE a.queue_id = queue AND a.recorded_at IS NULL AND NOT a.given_up;
    SELECT array_agg(a.run ORDER BY a.archive_id), array_agg(a.location ORDER BY a.archive_id)
    INTO left_runs, left_locations
    FROM penstock.archives a
    WHERE a.queue_id = queue AND a.given_up;
    INSERT INTO penstock.archives (queue_id, location) VALUES (queue, begin_archive.location)
    RETURNING archives.run INTO run;
    RETURN NEXT;
END
$$;

-- penstock.drop_archived(queue_name, partition_names, after_partition, max_partitions)
--
-- Drops archived segments of a queue, whatever their age, in a chunk of partitions. Messages that a group has not
-- read stay, unless the queue's retention_rule is drop_and_count. Call it again with the returned position until that
-- is null.
--
-- Parameters: partition_names - null for all; after_partition - where the last call ended, 0 to begin; max_partitions
-- - the number of partitions to visit.
-- Returns: the number of segments and messages dropped, and the position for the next call.
-- Calls: find_queue, find_partition, archived_to, consumed_to, drop_below. Tables: queues, partitions (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.drop_archived(
    queue_name text, partition_names text[] DEFAULT NULL, after_partition bigint DEFAULT 0,
    max_partitions integer DEFAULT 1000
)
RETURNS TABLE (dropped_segments bigint, dropped_messages bigint, next_partition bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    queue   integer := penstock.find_queue(queue_name);
    wanted  bigint[] := ARRAY(SELECT penstock.find_partition(queue_name, n) FROM unnest(partition_names) n);
    keeps   boolean := (
        SELECT q.settings ->> 'retention_rule' = 'keep_until_consumed' FROM penstock.queues q WHERE q.queue_id = queue
    );
    visited integer := 0;
    place   record;
    dropped record;
BEGIN
    IF (max_partitions > 0 AND after_partition >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'max_partitions is % and must be above 0; after_partition is % and must be 0 or above',
            max_partitions, after_partition
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    dropped_segments := 0;
    dropped_messages := 0;
    FOR place IN
        SELECT p.partition_id FROM penstock.partitions p
        WHERE p.queue_id = queue AND p.partition_id > after_partition
          AND (partition_names IS NULL OR p.partition_id = ANY (wanted))
        ORDER BY p.partition_id
        LIMIT max_partitions
    LOOP
        visited := visited + 1;
        next_partition := place.partition_id;
        SELECT * INTO dropped FROM penstock.drop_below(
            place.partition_id,
            least(
                penstock.archived_to(place.partition_id),
                CASE WHEN keeps THEN penstock.consumed_to(place.partition_id) END
            ),
            NULL
        );
        dropped_segments := dropped_segments + dropped.dropped_segments;
        dropped_messages := dropped_messages + dropped.dropped_messages;
    END LOOP;
    IF visited < max_partitions THEN
        next_partition := NULL;
    END IF;
    RETURN NEXT;
END
$$;

-- penstock.forget_archive(run)
--
-- Deletes a run that is not recorded: it can no longer be recorded, and its files are no part of the archive.
--
-- Parameters: run - its name.
-- Returns: whether a run was deleted; a recorded one stays.
-- Calls: nothing. Tables: archives (delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.forget_archive(run text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM penstock.archives a WHERE a.run = forget_archive.run AND a.recorded_at IS NULL;
    RETURN FOUND;
END
$$;

-- penstock.list_archives(queue_name)
--
-- Lists the recorded runs of `penstock archive`, oldest first.
--
-- Parameters: queue_name - null for all; a name that does not exist is an error.
-- Returns: a row per run: its location, the number of its partitions, messages, files and bytes, and the times of its
-- first and last message.
-- Calls: find_queue. Tables: archives, archive_files, archived, queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_archives(queue_name text DEFAULT NULL)
RETURNS TABLE (
    queue text, run text, location text, recorded_at timestamptz, partitions bigint, messages bigint,
    files bigint, bytes bigint, first_time timestamptz, last_time timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted integer := CASE WHEN queue_name IS NOT NULL THEN penstock.find_queue(queue_name) END;
BEGIN
    RETURN QUERY
    SELECT
        q.name, a.run, a.location, a.recorded_at, d.partitions, coalesce(d.messages, 0)::bigint,
        f.files, coalesce(f.bytes, 0)::bigint, d.first_time, d.last_time
    FROM penstock.archives a
    JOIN penstock.queues q ON q.queue_id = a.queue_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS files, sum(f.bytes) AS bytes
        FROM penstock.archive_files f
        WHERE f.archive_id = a.archive_id
    ) f
    CROSS JOIN LATERAL (
        SELECT
            count(DISTINCT d.partition_id) AS partitions, sum(d.stop_offset - d.start_offset) AS messages,
            min(d.first_time) AS first_time, max(d.last_time) AS last_time
        FROM penstock.archived d
        WHERE d.file_id IN (SELECT f.file_id FROM penstock.archive_files f WHERE f.archive_id = a.archive_id)
    ) d
    WHERE a.recorded_at IS NOT NULL AND (wanted IS NULL OR a.queue_id = wanted)
    ORDER BY a.archive_id;
END
$$;

-- penstock.plan_archived(partition_ids, starts, stops)
--
-- Finds archived messages in the files of the archive.
--
-- Parameters: parallel arrays, one entry per range of offsets.
-- Returns: a row per part of a range that is in one row group of one file, in the order of the ranges and of their
-- offsets: its first row, its approximate bytes, and the file by location and path. Ordered by file_id, row_group and
-- first_row, the offsets of each partition ascend too. Messages that are not archived are in no row.
-- Calls: nothing. Tables: archived, archive_files, archives (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.plan_archived(partition_ids bigint[], starts bigint[], stops bigint[])
RETURNS TABLE (
    partition_id bigint, start_offset bigint, stop_offset bigint, bytes bigint,
    location text, path text, file_id bigint, row_group integer, first_row bigint
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
    SELECT
        a.partition_id, greatest(a.start_offset, r.start), least(a.stop_offset, r.stop),
        a.bytes * (least(a.stop_offset, r.stop) - greatest(a.start_offset, r.start)) / (a.stop_offset - a.start_offset),
        v.location, f.path, f.file_id, a.row_group, a.first_row + greatest(r.start - a.start_offset, 0)
    FROM unnest(partition_ids, starts, stops) WITH ORDINALITY r (partition_id, start, stop, position)
    CROSS JOIN LATERAL (
        SELECT a.* FROM penstock.archived a
        WHERE a.partition_id = r.partition_id
          AND a.start_offset >= coalesce((
              SELECT b.start_offset FROM penstock.archived b
              WHERE b.partition_id = r.partition_id AND b.start_offset <= r.start
              ORDER BY b.start_offset DESC
              LIMIT 1
          ), 0)
          AND a.start_offset < r.stop AND a.stop_offset > r.start
    ) a
    JOIN penstock.archive_files f ON f.file_id = a.file_id
    JOIN penstock.archives v ON v.archive_id = f.archive_id
    ORDER BY r.position, a.start_offset
$$;

-- penstock.record_archive(run, paths, sizes, checksums, partition_ids, starts, stops, files, row_groups, first_rows,
--                         bytes, first_times, last_times)
--
-- Records a run whose files were verified. When this transaction commits, its ranges are archived: all of them or
-- none. A run that was given up is refused. The ranges of a partition must begin where its archive ends, or at the
-- floor if that is later, and have no gap. If one of the partitions was deleted meanwhile, nothing is recorded.
--
-- Parameters: run - as begin_archive named it; paths, sizes, checksums - the files, as parallel arrays; the others -
-- the ranges, as parallel arrays: files - positions in `paths`, from 1; first_rows - the position of the range in its
-- row group; bytes - the approximate size of the messages.
-- Returns: the number of messages recorded. To record a run again does nothing.
-- Calls: require_read_committed, archived_to, partition_span. Tables: archives (lock, update), partitions (lock),
-- archive_files, archived (insert).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.record_archive(
    run text, paths text[], sizes bigint[], checksums text[],
    partition_ids bigint[], starts bigint[], stops bigint[], files integer[], row_groups integer[], first_rows bigint[],
    bytes bigint[], first_times timestamptz[], last_times timestamptz[]
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    archive record;
    broken  record;
    numbers bigint[];
BEGIN
    PERFORM penstock.require_read_committed('record_archive');
    IF (cardinality(paths) = ALL (ARRAY[cardinality(sizes), cardinality(checksums)])) IS NOT TRUE
       OR (cardinality(partition_ids) = ALL (ARRAY[
           cardinality(starts), cardinality(stops), cardinality(files), cardinality(row_groups),
           cardinality(first_rows), cardinality(bytes), cardinality(first_times), cardinality(last_times)
       ])) IS NOT TRUE
    THEN
        RAISE EXCEPTION 'the arrays of files must be of one length, and so must those of ranges'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT a.archive_id, a.queue_id, a.given_up, a.recorded_at INTO archive
    FROM penstock.archives a
    WHERE a.run = record_archive.run
    FOR UPDATE;
    IF NOT FOUND OR archive.given_up THEN
        RAISE EXCEPTION 'archive run % was given up, because another one has begun; nothing was recorded', run
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF archive.recorded_at IS NOT NULL THEN
        -- The same run comes twice when its connection broke and it does not know.
        RETURN (
            SELECT coalesce(sum(d.stop_offset - d.start_offset), 0)::bigint
            FROM penstock.archived d
            WHERE d.file_id IN (SELECT f.file_id FROM penstock.archive_files f WHERE f.archive_id = archive.archive_id)
        );
    END IF;
    -- Against a deletion; pushes do not mind.
    PERFORM 1 FROM penstock.partitions p
    WHERE p.partition_id = ANY (partition_ids)
    ORDER BY p.partition_id
    FOR KEY SHARE;
    SELECT r.* INTO broken
    FROM (
        SELECT
            r.partition_id, r.start, r.stop, p.queue_id,
            lag(r.stop) OVER ascending AS last_stop,
            -- Readers go through file after file, and want each partition in its order.
            lag(r.place) OVER ascending > r.place AS lies_before
        FROM (
            SELECT r.partition_id, r.start, r.stop, ARRAY[r.file, r.row_group, r.first_row] AS place
            FROM unnest(partition_ids, starts, stops, files, row_groups, first_rows)
                r (partition_id, start, stop, file, row_group, first_row)
        ) r
        LEFT JOIN penstock.partitions p ON p.partition_id = r.partition_id
        WINDOW ascending AS (PARTITION BY r.partition_id ORDER BY r.start)
    ) r
    CROSS JOIN LATERAL penstock.partition_span(r.partition_id) s
    WHERE r.queue_id IS DISTINCT FROM archive.queue_id OR r.stop > s.head_offset OR r.lies_before
       OR coalesce(
           r.last_stop <> r.start,
           r.start < penstock.archived_to(r.partition_id)
           OR r.start > greatest(penstock.archived_to(r.partition_id), s.floor_offset)
       )
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'offsets % to % of partition % do not follow what is archived of it, or it was deleted',
            broken.start, broken.stop, broken.partition_id
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Run it again.';
    END IF;

    numbers := ARRAY(
        SELECT nextval(pg_get_serial_sequence('penstock.archive_files', 'file_id')) FROM generate_series(1, cardinality(paths))
    );
    INSERT INTO penstock.archive_files (file_id, archive_id, path, bytes, checksum) OVERRIDING SYSTEM VALUE
    SELECT f.file_id, archive.archive_id, f.path, f.size, f.checksum
    FROM unnest(numbers, paths, sizes, checksums) f (file_id, path, size, checksum);
    INSERT INTO penstock.archived (
        partition_id, start_offset, stop_offset, unbroken_from, file_id, row_group, first_row, bytes, first_time, last_time
    )
    SELECT
        r.partition_id, r.start, r.stop,
        -- The ranges of a run are unbroken, and go on with what is there where they begin at its end.
        coalesce((
            SELECT CASE WHEN a.stop_offset = r.first THEN a.unbroken_from END FROM penstock.archived a
            WHERE a.partition_id = r.partition_id
            ORDER BY a.start_offset DESC
            LIMIT 1
        ), r.first),
        numbers[r.file], r.row_group, r.first_row, r.bytes, r.first_time, r.last_time
    FROM (
        SELECT r.*, min(r.start) OVER (PARTITION BY r.partition_id) AS first
        FROM unnest(
            partition_ids, starts, stops, files, row_groups, first_rows, bytes, first_times, last_times
        ) r (partition_id, start, stop, file, row_group, first_row, bytes, first_time, last_time)
    ) r;
    UPDATE penstock.archives a SET recorded_at = clock_timestamp() WHERE a.archive_id = archive.archive_id;
    RETURN (SELECT coalesce(sum(r.stop - r.start), 0)::bigint FROM unnest(starts, stops) r (start, stop));
END
$$;

-- penstock.add_poison(flow_name, partition_ids, offsets, reason, errors)
--
-- Records messages at which a step of a flow fails. The flow's source makes dead letters of them when it reads them
-- again.
--
-- Parameters: parallel arrays; reason - of all of them.
-- Returns: nothing.
-- Calls: nothing. Tables: poison (insert).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.add_poison(
    flow_name text, partition_ids bigint[], offsets bigint[], reason text, errors text[]
)
RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO penstock.poison (flow_name, partition_id, message_offset, reason, error)
    SELECT add_poison.flow_name, w.partition_id, w.message_offset, add_poison.reason, w.error
    FROM unnest(partition_ids, offsets, errors) w (partition_id, message_offset, error)
    ON CONFLICT DO NOTHING
$$;

-- penstock.archived_letters(stage)
--
-- Returns the messages of a stage that are to become dead letters and are no longer in the log. The caller reads them
-- from the archive and passes them to copy_letters.
--
-- Parameters: stage - its id.
-- Returns: a row per message.
-- Calls: partition_span. Tables: staged_dead_letters, partitions, queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.archived_letters(stage bigint)
RETURNS TABLE (queue_name text, partition_name text, partition_id bigint, message_offset bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT q.name, p.name, d.partition_id, d.message_offset
    FROM penstock.staged_dead_letters d
    JOIN penstock.partitions p ON p.partition_id = d.partition_id
    JOIN penstock.queues q ON q.queue_id = p.queue_id
    CROSS JOIN LATERAL penstock.partition_span(d.partition_id) s
    WHERE d.stage_id = stage AND d.created_at IS NULL AND d.message_offset < s.floor_offset
    ORDER BY d.partition_id, d.message_offset
$$;

-- penstock.copy_letters(stage, partition_ids, offsets, payloads, keys, headers, times)
--
-- Stores copies of messages that are to become dead letters and are only in the archive.
--
-- Parameters: stage - its id; the others - the messages, as parallel arrays; headers as JSON.
-- Returns: the number of copies; raises insufficient_privilege if the stage belongs to another user.
-- Calls: require_own_writer. Tables: stages (read), staged_dead_letters (update).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.copy_letters(
    stage bigint, partition_ids bigint[], offsets bigint[], payloads bytea[], keys text[], headers text[],
    times timestamptz[]
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    copied bigint;
BEGIN
    IF (cardinality(partition_ids) = ALL (ARRAY[
        cardinality(offsets), cardinality(payloads), cardinality(keys), cardinality(headers), cardinality(times)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'partition_ids, offsets, payloads, keys, headers and times must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_own_writer((SELECT s.writer FROM penstock.stages s WHERE s.stage_id = stage));
    UPDATE penstock.staged_dead_letters d
    SET payload = m.payload, key = m.key, headers = m.headers::jsonb, created_at = m.created_at
    FROM unnest(partition_ids, offsets, payloads, keys, copy_letters.headers, times)
        m (partition_id, message_offset, payload, key, headers, created_at)
    WHERE d.stage_id = stage AND d.partition_id = m.partition_id AND d.message_offset = m.message_offset;
    GET DIAGNOSTICS copied = ROW_COUNT;
    RETURN copied;
END
$$;

-- penstock.epoch_ranges(writer, run)
--
-- Returns the ranges of the epoch that a run of a query has begun and not published: the failing message is among
-- them.
--
-- Parameters: writer, run - as in begin_stage.
-- Returns: a row per range; none if no epoch was begun.
-- Calls: nothing. Tables: epoch_sources, snapshots, partitions, queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.epoch_ranges(writer text, run text)
RETURNS TABLE (partition_id bigint, queue_name text, partition_name text, start_offset bigint, stop_offset bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT u.partition_id, q.name, p.name, u.start, u.stop
    FROM penstock.epoch_sources e
    JOIN penstock.snapshots s ON s.snapshot_id = e.snapshot_id
    CROSS JOIN LATERAL unnest(s.partition_ids, s.starts, s.ends) u (partition_id, start, stop)
    JOIN penstock.partitions p ON p.partition_id = u.partition_id
    JOIN penstock.queues q ON q.queue_id = p.queue_id
    WHERE e.writer = epoch_ranges.writer AND e.run = epoch_ranges.run
      AND e.epoch = (
          SELECT max(n.epoch) FROM penstock.epoch_sources n
          WHERE n.writer = epoch_ranges.writer AND n.run = epoch_ranges.run
      )
$$;

-- penstock.find_poison(flow_name, partition_ids, starts, stops)
--
-- Returns the messages in some ranges at which a step of a flow is known to fail.
--
-- Parameters: parallel arrays, one entry per range.
-- Returns: a row per message.
-- Calls: nothing. Tables: poison (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.find_poison(
    flow_name text, partition_ids bigint[], starts bigint[], stops bigint[]
)
RETURNS TABLE (partition_id bigint, message_offset bigint, reason text, error text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    -- From the poison, of which there is little, to the ranges, of which there may be very many.
    SELECT p.partition_id, p.message_offset, p.reason, p.error
    FROM penstock.poison p
    JOIN unnest(partition_ids, starts, stops) r (partition_id, start, stop)
        ON r.partition_id = p.partition_id AND p.message_offset >= r.start AND p.message_offset < r.stop
    WHERE p.flow_name = find_poison.flow_name
$$;

-- penstock.forget_flow(flow_name)
--
-- Removes a flow from the registry, with its state. Its groups, their dead letters and its queues stay.
--
-- Parameters: flow_name.
-- Returns: nothing; raises undefined_object when there is no such flow, and object_in_use while it runs.
-- Calls: nothing. Tables: flows, actions, flow_states, poison (delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.forget_flow(flow_name text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF EXISTS (
        SELECT 1 FROM penstock.flow_states s
        WHERE s.flow_name = forget_flow.flow_name AND s.state NOT IN ('stopped', 'finished', 'failed')
          AND s.heartbeat_at > clock_timestamp() - interval '15 seconds'
    ) THEN
        RAISE EXCEPTION 'flow "%" is being run by a supervisor', forget_flow.flow_name
            USING ERRCODE = 'object_in_use', HINT = 'Stop `penstock run` first.';
    END IF;
    DELETE FROM penstock.flows f WHERE f.name = forget_flow.flow_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no flow "%"', forget_flow.flow_name
            USING ERRCODE = 'undefined_object', HINT = '"penstock flows" lists those there are.';
    END IF;
    DELETE FROM penstock.actions a WHERE a.flow_name = forget_flow.flow_name;
    DELETE FROM penstock.flow_states s WHERE s.flow_name = forget_flow.flow_name;
    DELETE FROM penstock.poison p WHERE p.flow_name = forget_flow.flow_name;
END
$$;

-- penstock.heartbeat_flow(flow_name, supervisor, state, failures, error, retry_at, epoch, rows_per_second, take_over)
--
-- Records a supervisor's heartbeat and the status of a flow; a supervisor that holds a flow calls it every few
-- seconds, and at most once a second. The first supervisor to call holds the flow, until it reports that the flow has
-- stopped, finished or failed, or sends no heartbeat for 15 seconds.
--
-- Parameters: supervisor - who calls; state - starting, running, backing off, failed, paused, stopped or finished;
-- take_over - whether the one who holds it is known to be dead; the others as the columns of flow_states.
-- Returns: one row: who holds the flow now (somebody else: nothing was written), and whether it shall be paused.
-- Calls: nothing. Tables: flows (read), flow_states (insert, update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.heartbeat_flow(
    flow_name text, supervisor text, state text, failures integer DEFAULT 0, error text DEFAULT NULL,
    retry_at timestamptz DEFAULT NULL, epoch bigint DEFAULT NULL, rows_per_second double precision DEFAULT 0,
    take_over boolean DEFAULT false, late_rows bigint DEFAULT 0
)
RETURNS TABLE (holder text, paused boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO penstock.flow_states AS s (
        flow_name, supervisor, state, failures, error, retry_at, epoch, epoch_at, rows_per_second, late_rows
    ) VALUES (
        heartbeat_flow.flow_name, heartbeat_flow.supervisor, heartbeat_flow.state, heartbeat_flow.failures,
        heartbeat_flow.error, heartbeat_flow.retry_at, heartbeat_flow.epoch,
        CASE WHEN heartbeat_flow.epoch IS NOT NULL THEN clock_timestamp() END,
        heartbeat_flow.rows_per_second, heartbeat_flow.late_rows
    )
    ON CONFLICT (flow_name) DO UPDATE SET
        supervisor = excluded.supervisor, state = excluded.state, failures = excluded.failures,
        error = coalesce(excluded.error, CASE WHEN excluded.state <> 'running' THEN s.error END),
        retry_at = excluded.retry_at,
        epoch = coalesce(excluded.epoch, s.epoch),
        epoch_at = CASE
            WHEN excluded.epoch IS DISTINCT FROM s.epoch AND excluded.epoch IS NOT NULL THEN clock_timestamp()
            ELSE s.epoch_at
        END,
        rows_per_second = excluded.rows_per_second, late_rows = greatest(excluded.late_rows, s.late_rows),
        since = CASE WHEN excluded.state <> s.state THEN clock_timestamp() ELSE s.since END,
        heartbeat_at = clock_timestamp()
    WHERE s.supervisor = excluded.supervisor OR s.state IN ('stopped', 'finished', 'failed')
       OR s.heartbeat_at < clock_timestamp() - interval '15 seconds' OR take_over;
    RETURN QUERY
    SELECT s.supervisor, coalesce(f.paused, false)
    FROM penstock.flow_states s
    LEFT JOIN penstock.flows f ON f.name = s.flow_name
    WHERE s.flow_name = heartbeat_flow.flow_name;
END
$$;

-- penstock.list_actions(flow_name)
--
-- Lists the actions of a flow, or of all flows, each with its class and the plugin that provides it.
--
-- Parameters: flow_name - null for all.
-- Returns: a row per action, by flow and in the flow's order.
-- Calls: nothing. Tables: actions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_actions(flow_name text DEFAULT NULL)
RETURNS TABLE (flow text, flow_type text, action text, action_class text, plugin text, registered_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT a.flow_name, a.flow_type, a.action_name, a.action_class, a.plugin, a.registered_at
    FROM penstock.actions a
    WHERE list_actions.flow_name IS NULL OR a.flow_name = list_actions.flow_name
    ORDER BY a.flow_name, a.position
$$;

-- penstock.list_flows()
--
-- Lists flows and their status. Of the messages that a flow has not published, `warm` are admitted to an epoch and
-- `cold` are not; both are subtracted, not counted.
--
-- Returns: a row per flow, by name. The state is `lost` if its supervisor has sent no heartbeat for 15 seconds, and
-- `paused` also if no supervisor runs a flow that is to pause.
-- Calls: group_work. Tables: flows, flow_states, queues, consumer_groups, dead_letters, epoch_sources, snapshots,
-- sink_runs (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_flows()
RETURNS TABLE (
    name text, flow_type text, state text, since timestamptz, paused boolean, lag bigint, warm bigint, cold bigint,
    oldest_since timestamptz, rows_per_second double precision, epoch bigint, epoch_at timestamptz, dead_letters bigint,
    failures integer, error text, retry_at timestamptz, sources text[], outputs text[], checkpoint text,
    supervisor text, heartbeat_at timestamptz, late_rows bigint
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        f.name, f.flow_type,
        CASE
            WHEN f.paused AND (coalesce(s.state, 'stopped') IN ('stopped', 'finished') OR h.is_lost) THEN 'paused'
            WHEN h.is_lost THEN 'lost'
            ELSE coalesce(s.state, 'stopped')
        END,
        s.since, f.paused, w.lag, least(a.admitted, w.lag), greatest(w.lag - a.admitted, 0), w.oldest_since,
        coalesce(s.rows_per_second, 0), s.epoch, s.epoch_at, w.dead_letters,
        coalesce(s.failures, 0), s.error, s.retry_at, f.sources, f.outputs, f.checkpoint, s.supervisor, s.heartbeat_at,
        coalesce(s.late_rows, 0)
    FROM penstock.flows f
    LEFT JOIN penstock.flow_states s ON s.flow_name = f.name
    CROSS JOIN LATERAL (
        SELECT s.state NOT IN ('stopped', 'finished', 'failed')
            AND s.heartbeat_at < clock_timestamp() - interval '15 seconds' AS is_lost
    ) h
    CROSS JOIN LATERAL (
        SELECT
            coalesce(sum(w.lag), 0)::bigint AS lag, min(w.oldest_since) AS oldest_since,
            coalesce(sum((SELECT count(*) FROM penstock.dead_letters d WHERE d.group_id = g.group_id)), 0)::bigint
                AS dead_letters
        FROM penstock.queues q
        JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id AND g.name = f.name
        CROSS JOIN LATERAL (
            SELECT
                sum(greatest(w.head_offset - w.committed, 0)) AS lag,
                min(w.since) FILTER (WHERE w.head_offset > w.committed) AS oldest_since
            FROM penstock.group_work(g.group_id) w
        ) w
        WHERE q.name = ANY (f.sources)
    ) w
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(u.stop - u.start), 0)::bigint AS admitted
        FROM penstock.epoch_sources e
        JOIN penstock.snapshots n ON n.snapshot_id = e.snapshot_id
        CROSS JOIN LATERAL unnest(n.starts, n.ends) u (start, stop)
        WHERE e.writer = f.writer
          AND e.run = (
              SELECT r.run FROM penstock.sink_runs r WHERE r.writer = f.writer ORDER BY r.run_number DESC LIMIT 1
          )
    ) a
    ORDER BY f.name
$$;

-- penstock.pause_flow(flow_name, paused)
--
-- Pauses a flow or lets it continue. Its supervisor checks about once a second. A flow that pauses ends its epoch
-- without publishing it, and reads the same messages again when it continues.
--
-- Parameters: flow_name; paused.
-- Returns: nothing; raises undefined_object when there is no such flow.
-- Calls: nothing. Tables: flows (update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.pause_flow(flow_name text, paused boolean)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE penstock.flows f SET paused = pause_flow.paused WHERE f.name = flow_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no flow "%"', flow_name
            USING ERRCODE = 'undefined_object', HINT = '"penstock flows" lists those there are.';
    END IF;
END
$$;

-- penstock.paused_flows()
--
-- Returns the flows that are to pause. Supervisors call it about once a second.
--
-- Returns: their names.
-- Calls: nothing. Tables: flows (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.paused_flows()
RETURNS text[]
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ARRAY(SELECT f.name FROM penstock.flows f WHERE f.paused ORDER BY f.name)
$$;

-- penstock.publish_epoch(group_name, writer, run, epoch, stage_ids, stage_messages, target, reading)
--
-- Publishes an epoch of a flow in one transaction: the messages that its tasks have staged, the dead letters of its
-- tasks and sources, and the positions of its group. The rules are those of publish_stages. In addition, if a flow
-- has the group's name, only the query of the flow's own checkpoint may publish. The position in a partition that
-- somebody is pushing to is reported with the next call of advance_reader, because waiting for it here could
-- deadlock.
--
-- Parameters: group_name - the flow; the others as in publish_stages.
-- Returns: one row: the answer of publish_stages, and the number of dead letters.
-- Calls: publish_stages, bury_staged, advance_reader. Tables: flows (update), epoch_sources, snapshots, partitions,
-- queues, stages (read), staged_dead_letters (update, delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.publish_epoch(
    group_name text, writer text, run text, epoch bigint, stage_ids bigint[], stage_messages bigint[],
    target text DEFAULT NULL, reading text DEFAULT NULL
)
RETURNS TABLE (outcome text, segments bigint, messages bigint, dead_letters bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    owner   text;
    reads   bigint[];
    letters bigint[];
BEGIN
    UPDATE penstock.flows f SET writer = writer WHERE f.name = group_name AND f.writer IS NULL;
    owner := (SELECT f.writer FROM penstock.flows f WHERE f.name = group_name);
    IF owner <> writer THEN
        RAISE EXCEPTION 'flow "%" belongs to query %, so query % may not publish for it', group_name, owner, writer
            USING ERRCODE = '55PS1',
                  HINT = 'The checkpoint is another one, or is gone. Use the right one, or start again where the flow '
                         'stands: penstock run --reset.';
    END IF;
    -- Before publish_stages, which removes both.
    reads := ARRAY(
        SELECT e.snapshot_id FROM penstock.epoch_sources e
        WHERE e.writer = writer AND e.run = run AND e.epoch = epoch
    );
    -- Out of the way of publish_stages, which removes what lies with the stages. Not as an array: they may have copies.
    WITH moved AS (
        UPDATE penstock.staged_dead_letters d SET stage_id = -d.stage_id
        FROM penstock.stages s
        WHERE s.writer = writer AND s.epoch = epoch AND s.run = run AND d.stage_id = s.stage_id
          AND (d.of_source OR s.stage_id = ANY (stage_ids))
        RETURNING d.stage_id
    )
    SELECT coalesce(array_agg(DISTINCT m.stage_id), '{}') INTO letters FROM moved m;
    SELECT p.* INTO outcome, segments, messages
    FROM penstock.publish_stages(writer, run, epoch, stage_ids, stage_messages, target, reading) p;
    dead_letters := 0;
    IF outcome = 'published' THEN
        dead_letters := penstock.bury_staged(letters);
        PERFORM penstock.advance_reader(r.queue_name, group_name, r.ids, r.ends)
        FROM (
            SELECT q.name AS queue_name, array_agg(u.partition_id) AS ids, array_agg(u.stop) AS ends
            FROM penstock.snapshots s
            CROSS JOIN LATERAL unnest(s.partition_ids, s.ends) u (partition_id, stop)
            CROSS JOIN LATERAL (
                SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = u.partition_id LIMIT 1
            ) p
            JOIN penstock.queues q ON q.queue_id = p.queue_id
            WHERE s.snapshot_id = ANY (reads)
            GROUP BY q.name
        ) r;
    END IF;
    DELETE FROM penstock.staged_dead_letters d WHERE d.stage_id = ANY (letters);
    RETURN NEXT;
END
$$;

-- penstock.register_flow(flow_name, flow_type, sources, outputs, shape, checkpoint, action_names, action_classes,
--                        plugins)
--
-- Writes a flow and its actions to the registry. Shape and checkpoint are stored only while the flow has published
-- nothing. Afterwards the caller compares the stored ones with its own; a flow of another shape is not written.
--
-- Parameters: flow_type - DATA_SOURCE, TRANSFORM or DATA_SINK; sources, outputs - queues; shape - what the checkpoint
-- depends on; action_names, action_classes, plugins - the actions in order, as parallel arrays.
-- Returns: the stored shape and checkpoint, the query of that checkpoint, and whether the flow is paused.
-- Calls: require_names. Tables: flows, actions (insert, update, delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.register_flow(
    flow_name text, flow_type text, sources text[], outputs text[], shape text, checkpoint text,
    action_names text[], action_classes text[], plugins text[]
)
RETURNS TABLE (kept_shape text, kept_checkpoint text, writer text, paused boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM penstock.require_names(flow_name);
    IF (cardinality(action_names) = ALL (ARRAY[cardinality(action_classes), cardinality(plugins)])) IS NOT TRUE THEN
        RAISE EXCEPTION 'action_names, action_classes and plugins must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (
        SELECT 1 FROM penstock.flows f
        WHERE f.name = register_flow.flow_name AND f.writer IS NOT NULL AND f.shape <> register_flow.shape
    ) THEN
        RETURN QUERY
        SELECT f.shape, f.checkpoint, f.writer, f.paused FROM penstock.flows f WHERE f.name = register_flow.flow_name;
        RETURN;
    END IF;
    INSERT INTO penstock.flows AS f (name, flow_type, sources, outputs, shape, checkpoint)
    VALUES (
        register_flow.flow_name, register_flow.flow_type, register_flow.sources, register_flow.outputs,
        register_flow.shape, register_flow.checkpoint
    )
    ON CONFLICT (name) DO UPDATE SET
        flow_type = excluded.flow_type, sources = excluded.sources, outputs = excluded.outputs,
        shape = CASE WHEN f.writer IS NULL THEN excluded.shape ELSE f.shape END,
        checkpoint = CASE WHEN f.writer IS NULL THEN excluded.checkpoint ELSE f.checkpoint END,
        registered_at = clock_timestamp();
    DELETE FROM penstock.actions a
    WHERE a.flow_name = register_flow.flow_name AND a.action_name <> ALL (action_names);
    INSERT INTO penstock.actions (flow_name, action_name, position, flow_type, action_class, plugin)
    SELECT register_flow.flow_name, w.action_name, w.position, register_flow.flow_type, w.action_class, w.plugin
    FROM unnest(action_names, action_classes, plugins) WITH ORDINALITY
        w (action_name, action_class, plugin, position)
    ON CONFLICT (flow_name, action_name) DO UPDATE SET
        position = excluded.position, flow_type = excluded.flow_type, action_class = excluded.action_class,
        plugin = excluded.plugin, registered_at = clock_timestamp();
    RETURN QUERY
    SELECT f.shape, f.checkpoint, f.writer, f.paused FROM penstock.flows f WHERE f.name = register_flow.flow_name;
END
$$;

-- penstock.reset_flow(flow_name, new_checkpoint)
--
-- Lets a flow start with a new checkpoint where its last published epoch ended: first the position of its group is
-- set to that place. The state that Spark kept in the old checkpoint, for aggregations and joins, is lost.
--
-- Parameters: new_checkpoint - the location of the new one.
-- Returns: the number of busy partitions. Call it again until it returns 0; only then is the flow reset.
-- Calls: snapshot_chain, advance_reader. Tables: flows (update), sink_commits, snapshots, partitions, queues (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.reset_flow(flow_name text, new_checkpoint text)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    flow   penstock.flows;
    newest record;
    waited bigint := 0;
    here   bigint;
BEGIN
    SELECT f.* INTO flow FROM penstock.flows f WHERE f.name = reset_flow.flow_name FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no flow "%"', reset_flow.flow_name
            USING ERRCODE = 'undefined_object', HINT = '"penstock flows" lists those there are.';
    END IF;
    -- Each source of the flow is a lineage of snapshots; where one ends, the source has been read to.
    FOR newest IN
        SELECT DISTINCT ON (s.lineage) s.snapshot_id, s.token
        FROM penstock.sink_commits c
        CROSS JOIN LATERAL unnest(c.sources) u (snapshot_id)
        JOIN penstock.snapshots s ON s.snapshot_id = u.snapshot_id
        WHERE c.writer = flow.writer
        ORDER BY s.lineage, s.depth DESC
    LOOP
        SELECT coalesce(sum(a.busy), 0) INTO here
        FROM (
            SELECT q.name AS queue_name, array_agg(r.partition_id) AS ids, array_agg(r.position) AS positions
            FROM (
                -- Newer rows of the chain say more than older ones.
                SELECT DISTINCT ON (w.partition_id) w.partition_id, w.position
                FROM penstock.snapshot_chain(newest.snapshot_id, newest.token) c
                CROSS JOIN LATERAL (
                    SELECT u.partition_id, u.position, 1 AS rank
                    FROM unnest(c.partition_ids, c.ends) u (partition_id, position)
                    UNION ALL
                    SELECT u.partition_id, u.position, 2 FROM unnest(c.all_ids, c.all_positions) u (partition_id, position)
                ) w
                ORDER BY w.partition_id, c.depth DESC, w.rank
            ) r
            JOIN penstock.partitions p ON p.partition_id = r.partition_id
            JOIN penstock.queues q ON q.queue_id = p.queue_id
            GROUP BY q.name
        ) r
        CROSS JOIN LATERAL penstock.advance_reader(r.queue_name, reset_flow.flow_name, r.ids, r.positions) a;
        waited := waited + here;
    END LOOP;
    IF waited = 0 THEN
        UPDATE penstock.flows f SET writer = NULL, shape = '', checkpoint = new_checkpoint
        WHERE f.name = reset_flow.flow_name;
    END IF;
    RETURN waited;
END
$$;

-- penstock.stage_dead_letters(stage, group_name, queue_names, partition_names, offsets, reasons, errors, of_source,
--                             payloads, keys, headers, times, row_ids)
--
-- Stages dead letters: messages that become dead letters of a group when their epoch is published. To stage the same
-- message again does nothing.
--
-- Parameters: stage - of the same epoch; group_name - whose dead letters; queue_names, partition_names, offsets,
-- reasons, errors - the messages, as parallel arrays; of_source - whether the failure depends on the message alone,
-- so that it counts whichever attempt of a task reports it; payloads, keys, headers (JSON), times - copies of
-- messages that may no longer be in the log; row_ids - the row that failed, if it is made of several messages. A
-- message that is given several times failed with several rows.
-- Returns: nothing; raises object_not_in_prerequisite_state if the stage is gone, and insufficient_privilege if it
-- belongs to another user.
-- Calls: lock_stage, find_group. Tables: partitions, queues (read), staged_dead_letters (insert, update).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.stage_dead_letters(
    stage bigint, group_name text, queue_names text[], partition_names text[], offsets bigint[],
    reasons text[], errors text[], of_source boolean,
    payloads bytea[] DEFAULT NULL, keys text[] DEFAULT NULL, headers text[] DEFAULT NULL,
    times timestamptz[] DEFAULT NULL, row_ids text[] DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(partition_names), cardinality(offsets), cardinality(reasons), cardinality(errors),
        coalesce(cardinality(payloads), cardinality(offsets)), coalesce(cardinality(keys), cardinality(offsets)),
        coalesce(cardinality(headers), cardinality(offsets)), coalesce(cardinality(times), cardinality(offsets)),
        coalesce(cardinality(row_ids), cardinality(offsets))
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'the arrays that describe dead letters must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.lock_stage(stage);
    INSERT INTO penstock.staged_dead_letters AS d (
        stage_id, partition_id, message_offset, group_id, of_source, reason, error,
        payload, key, headers, created_at, row_ids
    )
    SELECT
        stage, p.partition_id, w.message_offset, g.group_id, stage_dead_letters.of_source, w.reason, w.error,
        w.payload, w.key, w.headers::jsonb, w.created_at, w.failed_rows
    FROM (
        SELECT DISTINCT ON (w.queue_name, w.partition_name, w.message_offset)
            w.*,
            array_agg(w.row_id) FILTER (WHERE w.row_id IS NOT NULL) OVER (
                PARTITION BY w.queue_name, w.partition_name, w.message_offset
            ) AS failed_rows
        FROM unnest(
            queue_names, partition_names, offsets, reasons, errors, payloads, keys, stage_dead_letters.headers, times,
            stage_dead_letters.row_ids
        ) WITH ORDINALITY w (
            queue_name, partition_name, message_offset, reason, error, payload, key, headers, created_at, row_id, position
        )
        ORDER BY w.queue_name, w.partition_name, w.message_offset, w.position
    ) w
    JOIN (
        SELECT n.queue_name, penstock.find_group(n.queue_name, group_name) AS group_id
        FROM (SELECT DISTINCT q AS queue_name FROM unnest(queue_names) q) n
    ) g ON g.queue_name = w.queue_name
    CROSS JOIN LATERAL (
        SELECT p.partition_id FROM penstock.partitions p
        WHERE p.queue_id = (SELECT q.queue_id FROM penstock.queues q WHERE q.name = w.queue_name)
          AND p.name = w.partition_name
        LIMIT 1
    ) p
    ON CONFLICT (stage_id, partition_id, message_offset) DO UPDATE
    SET row_ids = coalesce(d.row_ids, '{}') || excluded.row_ids
    WHERE NOT coalesce(d.row_ids, '{}') @> excluded.row_ids;
END
$$;

-- penstock.ack(queue_name, group_name, partition_name, lease_id, up_to)
--
-- Acknowledges a claim: SELECT penstock.ack('orders', 'billing', 'customer-7', '…').
--
-- Parameters: the names and the lease id that pop returned; up_to - all below this offset is done, null for all.
-- Returns: nothing; raises object_not_in_prerequisite_state when the lease is not live, and changes nothing then.
-- Calls: find_group, find_partition, ack_claims, require_lease. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.ack(
    queue_name text, group_name text, partition_name text, lease_id uuid, up_to bigint DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.require_lease((penstock.ack_claims(
        ARRAY[penstock.find_group(queue_name, group_name)],
        ARRAY[penstock.find_partition(queue_name, partition_name)],
        ARRAY[ack.lease_id],
        NULL,
        ARRAY[up_to]
    ))[1]);
END
$$;

-- penstock.ack_and_pop(group_ids, partition_ids, lease_ids, starts, stops, queue_name, group_name, partition_name,
--                      max_messages, max_bytes, max_partitions, lease_time, consumer, auto_ack, lows, durable, passing,
--                      first_use)
--
-- Acknowledges claims and claims what is next, in one call: a consumer makes one round trip and one commit per batch. The
-- acks come first and do not depend on what is there to pop: a lease that was lost is told in `acked`, and the pop goes on.
--
-- It takes partitions from the front of the ready list, so the one that waited longest comes first; it never locks a
-- partition, and only acks wait. With nothing to acknowledge and nothing to give it writes nothing.
--
-- Nothing that the pop finds raises an error. Unless first_use is true it creates neither queue nor group: where there is
-- none, or the group is external, it acknowledges and claims nothing, and pop_claims says why. Arguments that are wrong are
-- refused before anything is done. An error of the server (a lock timeout, a lost connection) undoes the whole call:
-- then nothing is acknowledged, and the caller sends the acks again, by themselves.
--
-- Parameters: those of ack_claims, whose arrays may be empty, then those of pop_claims; durable - false commits the caller's
-- transaction without waiting for the disk, where nothing is acknowledged, or by groups whose `durable_acks` is false, and
-- not with auto_ack.
-- Returns: the rows of pop_claims behind `acked`, what ack_claims returns, the same in each. With nothing to claim there
-- is one row, whose partition_id is null; none where lease_ids is null.
-- Calls: require_read_committed, ensure_group, end_claim, ack_claims, claim_named, claim_partition, claim_range,
-- stop_after_bytes, end_at, joined_slice, segment_slices. Tables: queues, consumer_groups, partitions, segments (read), ready
-- (delete), journal (insert), claims (insert, delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.ack_and_pop(
    group_ids      integer[],
    partition_ids  bigint[],
    lease_ids      uuid[],
    starts         bigint[],
    stops          bigint[],
    queue_name     text,
    group_name     text,
    partition_name text     DEFAULT NULL,
    max_messages   integer  DEFAULT 100,
    max_bytes      bigint   DEFAULT 8388608,
    max_partitions integer  DEFAULT 1,
    lease_time     float8   DEFAULT NULL,
    consumer       text     DEFAULT NULL,
    auto_ack       boolean  DEFAULT false,
    lows           bigint[] DEFAULT NULL,
    durable        boolean  DEFAULT true,
    passing        bigint[] DEFAULT NULL,
    first_use      boolean  DEFAULT false
)
RETURNS TABLE (
    acked boolean[],
    group_id integer, partition_id bigint, partition_of text, lease_id uuid, lease_until timestamptz,
    attempt smallint, claimed_from bigint, claimed_to bigint, entry_level integer, entry_seq bigint, shared boolean,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_sort = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    reader         integer;
    queue          integer;
    settings       jsonb;
    priorities     smallint[];
    mode           text;
    levels         integer[];
    level          integer;
    many           integer;
    entry          penstock.ready;
    newest         bigint;
    skipped        bigint;
    narrow_attempt smallint;
    acked_at       timestamptz;
    first_error    text;
    last_error     text;
    ordinary       boolean;
    plain          boolean;
    bytes          integer;
    low            integer;
    high           integer;
    length         integer;
    stop           bigint;
    head           bigint;
    sliced         boolean;
    wanted         integer;
    asked          integer;
    taken          integer;
    joined         boolean;
    latest         bigint;
    given          integer := 0;
    vain           integer := 0;
BEGIN
    -- Each statement here costs as much as the insert of a row, and each expression a tenth: hence so few of them on the
    -- way of the commonest call, and so much in one.
    -- A lease_time of null is the group's; of the others each must be a number, or there would be no end.
    IF (
        max_messages > 0 AND max_partitions > 0 AND max_bytes > 0 AND coalesce(lease_time, 1) > 0
        AND coalesce(lease_time, 1) <= 604800 AND current_setting('transaction_isolation') = 'read committed'
    ) IS NOT TRUE THEN
        IF (max_messages > 0 AND max_partitions > 0 AND max_bytes > 0) IS NOT TRUE OR lease_time <= 0 OR lease_time > 604800
        THEN
            RAISE EXCEPTION 'max_messages, max_bytes, max_partitions and lease_time must be above 0, and lease_time at most 604800'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        PERFORM penstock.require_read_committed(CASE WHEN cardinality(lease_ids) > 0 THEN 'ack' ELSE 'pop' END);
    END IF;
    SELECT g.group_id, q.queue_id, q.settings || g.config, q.priorities, g.mode
    INTO reader, queue, settings, priorities, mode
    FROM penstock.queues q
    -- LIMIT keeps this a look at one row. A join may read all groups.
    CROSS JOIN LATERAL (
        SELECT n.group_id, n.config, n.mode FROM penstock.consumer_groups n
        WHERE n.queue_id = q.queue_id AND n.name = group_name
        LIMIT 1
    ) g
    WHERE q.name = queue_name;
    IF cardinality(lease_ids) > 0 THEN
        -- The commonest: one claim of the group that pops, and all of it. ack_claims, which this agrees with, does all else.
        IF cardinality(lease_ids) = 1 AND group_ids[1] = reader
            AND coalesce(current_setting('penstock.lock_timeout', true), '') = ''
        THEN
            IF NOT (durable OR auto_ack) AND settings @> '{"durable_acks": false}' THEN
                PERFORM set_config('synchronous_commit', 'off', true);
            END IF;
            IF mode = 'ordered' THEN
                IF penstock.end_claim(reader, partition_ids[1], lease_ids[1], stops[1]) THEN
                    acked := '{t}';
                END IF;
            ELSIF starts[1] IS NULL AND stops[1] IS NULL THEN
                DELETE FROM penstock.claims c
                WHERE c.group_id = reader AND c.partition_id = partition_ids[1] AND c.lease_id = lease_ids[1]
                  AND c.whole AND c.due_at > clock_timestamp();
                IF FOUND THEN
                    acked := '{t}';
                END IF;
            END IF;
        END IF;
        IF acked IS NULL THEN
            acked := penstock.ack_claims(group_ids, partition_ids, lease_ids, starts, stops, durable OR auto_ack);
        END IF;
    ELSE
        acked := '{}';
        IF NOT (durable OR auto_ack) THEN
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
    END IF;

    IF mode IS NULL OR mode = 'external' THEN
        IF NOT first_use THEN
            IF lease_ids IS NOT NULL THEN
                RETURN NEXT;
            END IF;
            RETURN;
        END IF;
        IF mode IS NULL THEN
            PERFORM penstock.ensure_group(queue_name, group_name);
            SELECT g.group_id, q.queue_id, q.settings || g.config, q.priorities, g.mode
            INTO reader, queue, settings, priorities, mode
            FROM penstock.queues q
            JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
            WHERE q.name = queue_name AND g.name = group_name;
        END IF;
        IF mode = 'external' THEN
            RAISE EXCEPTION 'group "%" of queue "%" is external: its reader keeps its own positions', group_name, queue_name
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Pop with another group.';
        END IF;
    END IF;

    -- The commonest pop: any partition of a queue without priorities. claim_partition and claim_range, which it agrees with,
    -- do what is out of the ordinary.
    IF partition_name IS NULL AND cardinality(priorities) = 1 AND passing IS NULL AND NOT auto_ack THEN
        IF max_partitions > 1 AND mode = 'shared' THEN
            -- What this call puts into the ready list is for others. Not the last value of the sequence: after a restore
            -- there may be entries above it.
            SELECT y.seq INTO latest FROM penstock.ready y
            WHERE y.group_id = reader AND y.priority = priorities[1] AND y.seq >= coalesce(lows[1], 0)
            ORDER BY y.seq DESC
            LIMIT 1;
        END IF;
        LOOP
            DELETE FROM penstock.ready y
            WHERE y.ctid = (
                SELECT y.ctid FROM penstock.ready y
                WHERE y.group_id = reader AND y.priority = priorities[1]
                  AND y.seq >= coalesce(entry.seq + 1, lows[1], 0) AND y.seq <= coalesce(latest, 9223372036854775807)
                ORDER BY y.seq
                LIMIT 1
                FOR UPDATE SKIP LOCKED
            )
            RETURNING y.* INTO entry;
            EXIT WHEN entry.seq IS NULL;
            -- A new statement, hence a new snapshot: what the journal says now that the entry is ours. With it the segment that
            -- has the first message, if any has it.
            SELECT
                j.version, j.skipped, j.narrow_attempt, j.acked_at, j.first_error, j.last_error,
                j.ordinary AND s.ends IS NOT NULL AND s.base_offset + s.count > j.start, -- else retention has dropped it
                s.base_offset = j.start AND s.base_offset + s.count = least(j.start + max_messages, entry.hi),
                least(j.start + max_messages, entry.hi), s.bytes, false,
                reader, entry.partition_id,
                (SELECT p.name FROM penstock.partitions p WHERE p.partition_id = entry.partition_id),
                gen_random_uuid(),
                clock_timestamp() + make_interval(secs => coalesce(lease_time, (settings ->> 'lease_time')::float8)),
                j.attempt, j.start, s.base_offset + s.count, 1, entry.seq, j.shared,
                s.base_offset, s.count, s.created_at, 0, s.run_counts, s.run_times,
                0, s.body, s.ends, 0, s.keys, s.key_ends, 0, s.headers, s.header_ends
            INTO
                newest, skipped, narrow_attempt, acked_at, first_error, last_error,
                ordinary,
                plain,
                stop, bytes, sliced,
                group_id, partition_id,
                partition_of,
                lease_id,
                lease_until,
                attempt, claimed_from, claimed_to, entry_level, entry_seq, shared,
                base_offset, count, created_at, run_skip, run_counts, run_times,
                body_start, body, ends, key_start, keys, key_ends, header_start, headers, header_ends
            FROM (
                SELECT
                    j.version, j.skipped, j.narrow_attempt, j.acked_at, j.first_error, j.last_error,
                    coalesce(entry.lo, j.committed) AS start, mode = 'shared' AS shared,
                    CASE mode WHEN 'shared' THEN 1 ELSE j.attempt + 1 END AS attempt,
                    CASE mode WHEN 'shared' THEN entry.attempt = 0 AND entry.hi - entry.lo <= max_messages
                         ELSE j.state = 'r' AND j.ready_seq = entry.seq AND j.narrow_to IS NULL
                             AND settings @> '{"delay": 0, "quiet_period": 0}' END AS ordinary
                FROM penstock.journal j
                WHERE j.group_id = reader AND j.partition_id = entry.partition_id
                ORDER BY j.version DESC
                LIMIT 1
            ) j
            CROSS JOIN LATERAL (
                SELECT
                    s.base_offset, s.count, s.created_at, s.bytes, s.run_counts, s.run_times,
                    coalesce(s.body, s.body_compressed) AS body, s.ends, s.keys, s.key_ends, s.headers, s.header_ends
                FROM penstock.segments s
                WHERE s.partition_id = entry.partition_id AND s.base_offset <= j.start
                ORDER BY s.base_offset DESC
                LIMIT 1
            ) s;
            IF ordinary AND NOT plain THEN
                joined := false;
                IF claimed_to < stop AND (shared OR bytes < max_bytes) THEN
                    SELECT s.base_offset + s.count INTO head FROM penstock.segments s
                    WHERE s.partition_id = entry.partition_id
                    ORDER BY s.base_offset DESC
                    LIMIT 1;
                    IF head > claimed_to THEN
                        claimed_to := penstock.stop_after_bytes(entry.partition_id, claimed_from, least(stop, head), max_bytes);
                        sliced := true;
                    END IF;
                    ordinary := NOT shared OR claimed_to = stop; -- else the rest goes back to the ready list
                END IF;
                IF NOT sliced AND (claimed_to > stop OR base_offset < claimed_from) THEN
                    claimed_to := least(claimed_to, stop);
                    IF num_nonnulls(keys, headers, run_counts) = 0 AND octet_length(ends) = 4 * count THEN
                        -- A part of a segment of plain values is cut here, as segment_slices does it.
                        low := claimed_from - base_offset;
                        high := claimed_to - base_offset;
                        length := octet_length(body);
                        body_start := penstock.end_at(ends, low - 1, length);
                        body := substring(
                            body FROM body_start + 1 FOR greatest(penstock.end_at(ends, high - 1, length) - body_start, 0)
                        );
                        ends := substring(ends FROM 4 * low + 1 FOR 4 * (high - low));
                        base_offset := claimed_from;
                        count := high - low;
                        run_skip := low;
                    ELSE
                        sliced := true;
                    END IF;
                END IF;
                IF ordinary AND sliced AND count = 1 AND max_bytes <= 67108864 THEN
                    -- Messages that were pushed one at a time, it seems.
                    RETURN QUERY
                    SELECT
                        acked, group_id, partition_id, partition_of, lease_id, lease_until, attempt, claimed_from, claimed_to,
                        entry_level, entry_seq, shared, s.*
                    FROM penstock.joined_slice(entry.partition_id, claimed_from, claimed_to) s;
                    joined := FOUND;
                END IF;
                IF ordinary AND sliced AND NOT joined THEN
                    RETURN QUERY
                    SELECT
                        acked, group_id, partition_id, partition_of, lease_id, lease_until, attempt, claimed_from, claimed_to,
                        entry_level, entry_seq, shared, s.*
                    FROM penstock.segment_slices(entry.partition_id, claimed_from, claimed_to) s;
                    ordinary := FOUND; -- a purge may have committed since we looked what there is
                END IF;
            END IF;
            IF ordinary THEN
                IF shared THEN
                    INSERT INTO penstock.claims (
                        group_id, partition_id, lo, hi, attempt, lease_id, due_at, consumer, first_error, last_error, alone
                    ) VALUES (
                        group_id, partition_id, claimed_from, claimed_to, attempt, lease_id, lease_until, consumer,
                        entry.first_error, entry.last_error, claimed_to - claimed_from = 1
                    );
                ELSE
                    INSERT INTO penstock.journal (
                        group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt,
                        due_at, lease_id, consumer, acked_at, first_error, last_error
                    ) VALUES (
                        group_id, partition_id, newest + 1, 'c', claimed_from, claimed_to, skipped, attempt,
                        narrow_attempt, lease_until, lease_id, consumer, acked_at, first_error, last_error
                    );
                END IF;
                IF NOT sliced THEN
                    RETURN NEXT;
                END IF;
                IF max_partitions = 1 THEN
                    RETURN;
                END IF;
            ELSIF mode = 'shared' THEN
                RETURN QUERY SELECT acked, c.* FROM penstock.claim_range(
                    entry, 1, settings, max_messages, max_bytes, lease_time, consumer, auto_ack
                ) c;
            ELSE
                RETURN QUERY SELECT acked, c.* FROM penstock.claim_partition(
                    reader, entry.partition_id, NULL, 1, entry.seq, settings,
                    max_messages, max_bytes, lease_time, consumer, auto_ack
                ) c;
            END IF;
            IF ordinary OR FOUND THEN
                given := given + 1;
                EXIT WHEN given = max_partitions;
            ELSE
                vain := vain + 1; -- this entry had nothing to give, those behind it may
                EXIT WHEN vain = 1000;
            END IF;
        END LOOP;
        IF given = 0 AND lease_ids IS NOT NULL THEN
            partition_id := NULL;
            lease_id := NULL;
            claimed_from := NULL;
            claimed_to := NULL;
            body := NULL;
            RETURN NEXT;
        END IF;
        RETURN;
    END IF;

    IF partition_name IS NOT NULL THEN
        RETURN QUERY SELECT acked, c.* FROM penstock.claim_named(
            reader, queue, partition_name, mode, priorities, settings,
            max_messages, max_bytes, lease_time, consumer, auto_ack
        ) c;
        IF NOT FOUND AND lease_ids IS NOT NULL THEN
            RETURN NEXT;
        END IF;
        RETURN;
    END IF;

    -- Highest priority first. One pop in eight begins at a lower level, so that nobody starves: the less often the lower it
    -- is, which is what the smaller of two random numbers does. What lies below comes next, then what lies above.
    wanted := max_partitions;
    levels := ARRAY[1];
    many := cardinality(priorities);
    IF many > 1 THEN
        level := CASE WHEN random() < 0.125 THEN floor(least(random(), random()) * (many - 1))::integer + 2 ELSE 1 END;
        levels := ARRAY(SELECT i FROM generate_series(level, many) i) || ARRAY(SELECT i FROM generate_series(1, level - 1) i);
    END IF;
    FOREACH level IN ARRAY levels LOOP
        -- An entry may turn out to have nothing to give, and those behind it something: go on, within reason.
        LOOP
            asked := wanted;
            taken := 0;
            FOR entry IN
                WITH taken AS MATERIALIZED (
                    SELECT y.ctid FROM penstock.ready y
                    WHERE y.group_id = reader AND y.priority = priorities[level]
                      AND y.seq >= coalesce(lows[level], 0)
                      AND (passing IS NULL OR y.partition_id <> ALL (passing))
                    ORDER BY y.seq
                    LIMIT asked
                    FOR UPDATE SKIP LOCKED
                )
                DELETE FROM penstock.ready y
                WHERE y.ctid = ANY (ARRAY(SELECT t.ctid FROM taken t))
                RETURNING y.*
            LOOP
                taken := taken + 1;
                IF mode = 'ordered' THEN
                    RETURN QUERY SELECT acked, c.* FROM penstock.claim_partition(
                        reader, entry.partition_id, NULL, level, entry.seq, settings,
                        max_messages, max_bytes, lease_time, consumer, auto_ack
                    ) c;
                ELSE
                    RETURN QUERY SELECT acked, c.* FROM penstock.claim_range(
                        entry, level, settings, max_messages, max_bytes, lease_time, consumer, auto_ack
                    ) c;
                END IF;
                IF FOUND THEN
                    given := given + 1;
                    wanted := wanted - 1;
                ELSE
                    vain := vain + 1;
                END IF;
            END LOOP;
            EXIT WHEN wanted = 0 OR taken < asked OR vain >= 1000;
        END LOOP;
        EXIT WHEN wanted = 0 OR vain >= 1000;
    END LOOP;
    IF given = 0 AND lease_ids IS NOT NULL THEN
        RETURN NEXT;
    END IF;
END
$$;

-- penstock.ack_claims(group_ids, partition_ids, lease_ids, starts, stops, durable)
--
-- Acknowledges any number of claims, of groups of either mode. A claim of which nothing is left ends; the rest of any other
-- stays under its lease. In an ordered group the partition of a claim that ends joins the end of the ready list. A lease
-- that has expired or is not the claim's own changes nothing.
--
-- Parameters: parallel arrays, one entry per range that is done; starts - its first offset, null for the beginning of the
-- claim; stops - the offset after its last, null for the end of the claim. In an ordered group all below `stop` is
-- done, and `start` is ignored. durable - false commits the caller's transaction without waiting for the disk, where
-- `durable_acks` is false for all of the groups. Only for a caller who does nothing else in it.
-- Returns: for each entry, in the order given, whether it was acknowledged.
-- Calls: require_read_committed, use_lock_timeout, end_claim, ack_shared, ack_mixed, lock_newest, newest_state, newest_segment.
-- Tables: queues, consumer_groups, partitions, segments (read), journal (lock, insert,
-- delete), ready (insert), claims (delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.ack_claims(
    group_ids     integer[],
    partition_ids bigint[],
    lease_ids     uuid[],
    starts        bigint[] DEFAULT NULL,
    stops         bigint[] DEFAULT NULL,
    durable       boolean  DEFAULT true
)
RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    reader   integer;
    target   bigint;
    lease    uuid;
    shared   boolean;
    relaxed  boolean;
    trimming boolean;
    acked    boolean[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM penstock.require_read_committed('ack');
    END IF;
    IF current_setting('penstock.lock_timeout', true) <> '' THEN
        PERFORM penstock.use_lock_timeout();
    END IF;
    -- One claim, and all of it: what most calls are about. What follows and ack_shared, which it agrees with, do all else.
    IF cardinality(group_ids) = 1 THEN
        reader := group_ids[1];
        target := partition_ids[1];
        lease := lease_ids[1];
        SELECT
            g.mode = 'shared',
            NOT durable AND coalesce(g.config -> 'durable_acks', (
                SELECT q.settings -> 'durable_acks' FROM penstock.queues q WHERE q.queue_id = g.queue_id
            )) = 'false'
        INTO shared, relaxed
        FROM penstock.consumer_groups g
        WHERE g.group_id = reader;
        IF relaxed THEN
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
        IF shared THEN
            IF starts[1] IS NULL AND stops[1] IS NULL THEN
                DELETE FROM penstock.claims c
                WHERE c.group_id = reader AND c.partition_id = target AND c.lease_id = lease AND c.whole
                  AND c.due_at > clock_timestamp();
                IF FOUND THEN
                    RETURN ARRAY[true];
                END IF;
            END IF;
            RETURN penstock.ack_shared(group_ids, partition_ids, lease_ids, starts, stops);
        END IF;
        IF penstock.end_claim(reader, target, lease, stops[1]) THEN
            RETURN ARRAY[true];
        END IF;
    ELSIF NOT durable AND NOT EXISTS (
        SELECT 1
        FROM penstock.consumer_groups g
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE g.group_id = ANY (group_ids)
          AND coalesce(g.config -> 'durable_acks', q.settings -> 'durable_acks') IS DISTINCT FROM 'false'
    ) THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = ANY (group_ids) AND g.mode = 'shared'
    ) THEN
        IF cardinality(group_ids) = 1 THEN
            RETURN penstock.ack_shared(group_ids, partition_ids, lease_ids, starts, stops);
        END IF;
        RETURN penstock.ack_mixed(group_ids, partition_ids, lease_ids, starts, stops);
    END IF;
    -- Not in a function of its own, as ack_shared is: this is the hot path, and a call costs some microseconds.
    PERFORM penstock.lock_newest(group_ids, partition_ids);
    -- A new statement, hence a new snapshot: whoever held the lock before us may have ended the claim.
    WITH ending AS MATERIALIZED (
        SELECT
            u.position, p.priority, s.head_offset, j.*,
            coalesce(u.stop, j.claimed_to) AS done_to,
            coalesce(u.stop, j.claimed_to) = j.claimed_to AS whole,
            -- With nothing left the ready list entry would only lead to an empty look: park it at once.
            CASE WHEN coalesce(u.stop, j.claimed_to) < j.claimed_to THEN 'c'
                 WHEN s.head_offset > j.claimed_to THEN 'r'
                 ELSE 'p' END AS next_state,
            nextval('penstock.ready_seq') AS seq
        FROM unnest(group_ids, partition_ids, lease_ids, stops) WITH ORDINALITY
            u (group_id, partition_id, lease_id, stop, position)
        CROSS JOIN LATERAL penstock.newest_state(u.group_id, u.partition_id) j
        JOIN penstock.partitions p ON p.partition_id = j.partition_id
        CROSS JOIN LATERAL penstock.newest_segment(j.partition_id) s
        WHERE j.state = 'c' AND j.lease_id = u.lease_id AND j.due_at > clock_timestamp()
          AND coalesce(u.stop, j.claimed_to) BETWEEN j.committed AND j.claimed_to
    ), appended AS (
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
            ready_seq, due_at, lease_id, consumer, claimed_at, acked_at, first_error, last_error
        )
        SELECT
            e.group_id, e.partition_id, e.version + 1, e.next_state::"char", e.done_to, e.claimed_to, e.skipped,
            CASE WHEN e.done_to = e.committed THEN e.attempt
                 WHEN NOT e.whole THEN e.attempt
                 WHEN e.narrow_to > e.done_to THEN e.narrow_attempt ELSE 0 END,
            CASE WHEN e.narrow_to > e.done_to THEN e.narrow_attempt ELSE 0 END,
            CASE WHEN e.narrow_to > e.done_to THEN e.narrow_to END,
            CASE WHEN e.next_state = 'r' THEN e.seq END,
            CASE e.next_state WHEN 'c' THEN e.due_at WHEN 'p' THEN clock_timestamp() + interval '50 milliseconds' END,
            CASE WHEN e.next_state = 'c' THEN e.lease_id END,
            CASE WHEN e.next_state = 'c' THEN e.consumer END,
            CASE WHEN e.next_state = 'c' THEN coalesce(e.claimed_at, e.at) END,
            clock_timestamp(),
            CASE WHEN e.done_to = e.committed THEN e.first_error END,
            CASE WHEN e.done_to = e.committed THEN e.last_error END
        FROM ending e
    ), listed AS (
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
        SELECT e.group_id, e.priority, e.seq, e.partition_id FROM ending e WHERE e.next_state = 'r'
    )
    SELECT array_agg(e.position IS NOT NULL ORDER BY n), bool_or(e.version % 32 < 2) INTO acked, trimming
    FROM generate_series(1, cardinality(lease_ids)) n
    LEFT JOIN ending e ON e.position = n;
    IF trimming THEN
        -- As end_claim does it.
        DELETE FROM penstock.journal j
        WHERE j.ctid = ANY (ARRAY(
            SELECT o.ctid
            FROM unnest(group_ids, partition_ids) u (group_id, partition_id)
            CROSS JOIN LATERAL penstock.newest_state(u.group_id, u.partition_id) n
            CROSS JOIN LATERAL (
                SELECT o.ctid FROM penstock.journal o
                WHERE o.group_id = n.group_id AND o.partition_id = n.partition_id
                  AND o.version BETWEEN n.version - 81 AND n.version - 17
                FOR UPDATE SKIP LOCKED
            ) o
            WHERE n.version % 32 IN (1, 2)
        ));
    END IF;
    RETURN acked;
END
$$;

-- penstock.configure_group(queue_name, group_name, changes)
--
-- Changes a group's settings, creating the group on first use. Takes effect with the next pop or sweep.
--
-- Parameters: changes - settings to set; JSON null resets one to the queue's.
-- Returns: all settings of the group, after the change.
-- Calls: ensure_group, checked_config, group_settings_problem, end_waits. Tables: consumer_groups (update), queues
-- (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.configure_group(queue_name text, group_name text, changes jsonb)
RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target    integer := penstock.ensure_group(queue_name, group_name);
    wanted    jsonb;
    problem   text;
    effective jsonb;
BEGIN
    SELECT penstock.checked_config(g.config, changes) INTO wanted
    FROM penstock.consumer_groups g WHERE g.group_id = target FOR UPDATE;
    problem := penstock.group_settings_problem(wanted);
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE penstock.consumer_groups g
    SET config = wanted, limited_at = CASE WHEN changes ? 'max_attempts' THEN clock_timestamp() ELSE g.limited_at END
    WHERE g.group_id = target;
    IF changes ?| ARRAY['delay', 'quiet_period', 'window_buffer'] THEN
        PERFORM penstock.end_waits(ARRAY[target]);
    END IF;
    SELECT q.settings || wanted INTO effective
    FROM penstock.consumer_groups g JOIN penstock.queues q ON q.queue_id = g.queue_id
    WHERE g.group_id = target;
    RETURN effective;
END
$$;

-- penstock.count_dead_letters(queue_name, group_name)
--
-- Counts the dead letters of each reason.
--
-- Parameters: group_name - null for all groups of the queue.
-- Returns: a row per group and reason, the most frequent first.
-- Calls: find_queue. Tables: dead_letters, consumer_groups (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.count_dead_letters(queue_name text, group_name text DEFAULT NULL)
RETURNS TABLE (
    consumer_group text, reason text, letters bigint, first_died_at timestamptz, last_died_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- Looked up before and not within the query, where an empty table would keep it from being asked at all.
    queue integer := penstock.find_queue(queue_name);
BEGIN
    RETURN QUERY
    SELECT g.name, d.reason, count(*), min(d.died_at), max(d.died_at)
    FROM penstock.dead_letters d
    JOIN penstock.consumer_groups g ON g.group_id = d.group_id
    WHERE d.queue_id = queue
      AND (count_dead_letters.group_name IS NULL OR g.name = count_dead_letters.group_name)
    GROUP BY g.name, d.reason
    ORDER BY count(*) DESC, g.name, d.reason;
END
$$;

-- penstock.create_group(queue_name, group_name, config, subscription, from_time, mode)
--
-- Creates a group, and its queue on first use. It blocks no push and waits for none, however long its transaction
-- stays open. The first partitions are enrolled at once. The sweep enrols the others in chunks after the group is
-- committed, and continues until the pushes that were in progress then, and may not see the group, have ended.
--
-- Parameters: config - settings that override the queue's; subscription - 'all' (every message), 'new' (messages
-- pushed from now on) or 'time' (messages from from_time on); mode - 'ordered' (one claim per partition at a time),
-- 'shared' (competing consumers, many claims per partition, no order) or 'external' (the reader keeps its own
-- positions and reports them; see ensure_reader).
-- Returns: the group's id; raises duplicate_object when it exists.
-- Calls: require_names, checked_config, group_settings_problem, require_read_committed, use_lock_timeout,
-- refuse_first_use, find_queue, queue_lock_class, enrol_partitions. Tables: queues, consumer_groups (insert).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.create_group(
    queue_name   text,
    group_name   text,
    config       jsonb       DEFAULT '{}',
    subscription text        DEFAULT 'all',
    from_time    timestamptz DEFAULT NULL,
    mode         text        DEFAULT 'ordered'
)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    queue   integer;
    created integer;
    wanted  jsonb := penstock.checked_config('{}', create_group.config);
    problem text := penstock.group_settings_problem(wanted);
BEGIN
    PERFORM penstock.require_names(queue_name, group_name);
    IF problem IS NULL AND (create_group.subscription IN ('all', 'new', 'time')) IS NOT TRUE THEN
        problem := format(
            'subscription is %s but must be all, new or time', coalesce(to_json(create_group.subscription)::text, 'null')
        );
    END IF;
    IF problem IS NULL AND (create_group.mode IN ('ordered', 'shared', 'external')) IS NOT TRUE THEN
        problem := format(
            'mode is %s but must be ordered, shared or external', coalesce(to_json(create_group.mode)::text, 'null')
        );
    END IF;
    IF problem IS NULL AND (create_group.subscription = 'time') <> (create_group.from_time IS NOT NULL) THEN
        problem := 'a subscription from a time needs from_time, and no other has one';
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_read_committed('create_group');
    PERFORM penstock.use_lock_timeout();
    PERFORM penstock.refuse_first_use(ARRAY[queue_name]);
    LOOP
        INSERT INTO penstock.queues (name) VALUES (queue_name) ON CONFLICT DO NOTHING;
        queue := penstock.find_queue(queue_name);
        -- Shared, as a push has it: it keeps the queue from being deleted. In a new statement it is still there, or
        -- not.
        PERFORM pg_advisory_xact_lock_shared(penstock.queue_lock_class(), queue);
        EXIT WHEN EXISTS (SELECT 1 FROM penstock.queues q WHERE q.queue_id = queue);
    END LOOP;
    INSERT INTO penstock.consumer_groups (
        queue_id, name, mode, config, subscription, from_time, enrolled_to, created_in
    )
    VALUES (
        queue, group_name, create_group.mode, wanted, create_group.subscription, create_group.from_time, 0,
        pg_current_xact_id()
    )
    ON CONFLICT DO NOTHING
    RETURNING group_id INTO created;
    IF created IS NULL THEN
        RAISE EXCEPTION 'group "%" of queue "%" exists already', group_name, queue_name
            USING ERRCODE = 'duplicate_object', HINT = 'Change its settings with configure_group.';
    END IF;
    IF create_group.subscription <> 'new' THEN
        PERFORM penstock.enrol_partitions(created, 1000, creating => true);
    END IF;
    RETURN created;
END
$$;

-- penstock.delete_group(queue_name, group_name)
--
-- Deletes a group with its positions, dead letters and private lane. Waits at most `penstock.lock_timeout` for pushes
-- in progress and for transactions that settle claims of the group. Claims that are held lose their lease.
--
-- Pushes wait for the queue's lock, so it is not held while this function waits: it is released and requested again.
--
-- Parameters: the names.
-- Returns: nothing; raises undefined_object when there is no such group.
-- Calls: find_group, use_lock_timeout, lock_queue, delete_partitions, delete_positions, find_queue. Tables:
-- sweep_lock, consumer_groups (lock, delete), dead_letters (delete), partitions (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.delete_group(queue_name text, group_name text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    target   integer := penstock.find_group(queue_name, group_name);
    queue    integer := penstock.find_queue(queue_name);
    allowed  text;
    deadline timestamptz;
BEGIN
    PERFORM penstock.use_lock_timeout();
    allowed := current_setting('lock_timeout');
    deadline := CASE WHEN allowed = '0' THEN 'infinity' ELSE clock_timestamp() + allowed::interval END;
    -- Against those who append journal rows for it: enrolment, seek, resync.
    PERFORM 1 FROM penstock.consumer_groups g WHERE g.group_id = target FOR UPDATE;
    LOOP
        -- Waits for all who hold something of the group. What they have left then is gone already when the lock is got.
        PERFORM penstock.delete_positions(ARRAY[target], NULL);
        BEGIN
            PERFORM penstock.lock_queue(queue);
            PERFORM set_config('lock_timeout', '100ms', true);
            PERFORM penstock.delete_partitions(
                ARRAY(SELECT p.partition_id FROM penstock.partitions p WHERE p.lane_of = target)
            );
            PERFORM penstock.delete_positions(ARRAY[target], NULL);
            -- A sweep may have woken or parked some of them meanwhile; now none is at work until we have committed.
            LOCK TABLE penstock.sweep_lock IN SHARE UPDATE EXCLUSIVE MODE;
            PERFORM penstock.delete_positions(ARRAY[target], NULL);
            DELETE FROM penstock.dead_letters d WHERE d.group_id = target;
            DELETE FROM penstock.consumer_groups g WHERE g.group_id = target;
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            -- With all that was done in this block, the queue's lock is given back.
            IF clock_timestamp() > deadline THEN
                RAISE;
            END IF;
        END;
        PERFORM pg_sleep(0.1);
    END LOOP;
END
$$;

-- penstock.discard(queue_name, group_name, wanted_reason, wanted_ids, max_rows)
--
-- Deletes dead letters, a chunk at a time.
--
-- Parameters: those of take_dead_letters.
-- Returns: the number deleted; call it again until it returns 0.
-- Calls: take_dead_letters. Tables: none of its own.
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.discard(
    queue_name text, group_name text DEFAULT NULL, wanted_reason text DEFAULT NULL, wanted_ids bigint[] DEFAULT NULL,
    max_rows integer DEFAULT 1000
)
RETURNS bigint
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT count(*) FROM penstock.take_dead_letters(queue_name, group_name, wanted_reason, wanted_ids, max_rows)
$$;

-- penstock.has_pending_messages(queue_name, partition_name, consumer_group, lows)
--
-- Returns whether a pop could find something now. Idle consumers call it instead of popping: it takes one index probe
-- and writes nothing. True is no promise: another consumer may be faster, or a delay may not be over. It is true for
-- a group that does not exist, which has all messages to read, and false for a queue that does not exist.
--
-- Parameters: partition_name - null or '*' for any; lows - as in pop_claims.
-- Returns: whether the ready list has an entry.
-- Calls: newest_state. Tables: queues, consumer_groups, partitions, ready (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.has_pending_messages(
    queue_name text, partition_name text DEFAULT NULL, consumer_group text DEFAULT 'default', lows bigint[] DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    reader  record;
    pending boolean;
BEGIN
    -- What is asked most often is one statement, and as small as can be.
    IF lows IS NULL AND (partition_name IS NULL OR partition_name = '*') THEN
        SELECT EXISTS (SELECT 1 FROM penstock.ready y WHERE y.group_id = g.group_id) INTO pending
        FROM penstock.consumer_groups g
        WHERE g.queue_id = (SELECT q.queue_id FROM penstock.queues q WHERE q.name = queue_name)
          AND g.name = consumer_group;
        RETURN coalesce(pending, EXISTS (SELECT 1 FROM penstock.queues q WHERE q.name = queue_name));
    END IF;
    SELECT g.group_id, q.queue_id, q.priorities INTO reader
    FROM penstock.queues q
    JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
    WHERE q.name = queue_name AND g.name = consumer_group;
    IF NOT FOUND THEN
        RETURN EXISTS (SELECT 1 FROM penstock.queues q WHERE q.name = queue_name);
    END IF;
    IF partition_name IS NULL OR partition_name = '*' THEN
        RETURN EXISTS (
            SELECT 1
            FROM unnest(reader.priorities, lows) l (level, low)
            CROSS JOIN LATERAL (
                SELECT 1 FROM penstock.ready y
                WHERE y.group_id = reader.group_id AND y.priority = l.level AND y.seq >= coalesce(l.low, 0)
                LIMIT 1
            ) y
        );
    END IF;
    RETURN EXISTS (
        SELECT 1
        FROM penstock.partitions p
        CROSS JOIN LATERAL penstock.newest_state(reader.group_id, p.partition_id) j
        WHERE p.queue_id = reader.queue_id AND p.name = partition_name
          AND (j.state = 'r' OR EXISTS (
              -- Ranges of a shared group, beside the frontier.
              SELECT 1 FROM penstock.ready y
              WHERE y.group_id = reader.group_id AND y.partition_id = p.partition_id AND y.lo IS NOT NULL
          ))
    );
END
$$;

-- penstock.history(queue_name, group_name, partition_name, max_rows)
--
-- Lists the state changes of a partition in a group, newest first: the rows of the journal. It reaches back at least
-- as far as the lease time of its claims, or sixteen rows: acks and the sweep trim older ones.
--
-- Parameters: the names; max_rows - the largest number of rows.
-- Returns: a row per state change. Whoever knows a lease_id can settle the claim, so it is null for all but admins.
-- Calls: is_admin, find_group, find_partition, state_name. Tables: journal (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.history(
    queue_name text, group_name text, partition_name text, max_rows integer DEFAULT 100
)
RETURNS TABLE (
    version bigint, at timestamptz, state text, committed bigint, claimed_to bigint, skipped bigint,
    attempt smallint, due_at timestamptz, lease_id uuid, consumer text, error text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- Looked up before and not within the query, where an empty table would keep it from being asked at all.
    reader integer := penstock.find_group(queue_name, group_name);
    target bigint := penstock.find_partition(queue_name, partition_name);
    admin  boolean := penstock.is_admin();
BEGIN
    RETURN QUERY
    SELECT
        j.version, j.at, penstock.state_name(j.state), j.committed, j.claimed_to, j.skipped,
        j.attempt, j.due_at, CASE WHEN admin THEN j.lease_id END, j.consumer, j.last_error
    FROM penstock.journal j
    WHERE j.group_id = reader AND j.partition_id = target
    ORDER BY j.version DESC
    LIMIT max_rows;
END
$$;

-- penstock.lag(queue_name, group_name)
--
-- Returns the number of messages that a group has not acknowledged: head − committed, subtracted and not counted.
--
-- Parameters: the names.
-- Returns: the lag; raises undefined_object when there is no such group.
-- Calls: find_group, group_work. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.lag(queue_name text, group_name text)
RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(sum(greatest(w.head_offset - w.committed, 0)), 0)::bigint
    FROM penstock.group_work(penstock.find_group(queue_name, group_name)) w
$$;

-- penstock.list_claims(queue_name, group_name)
--
-- Lists the claims that are held now: by whom, since when and until when.
--
-- Parameters: null for all queues, or all groups.
-- Returns: a row per claim, the first to expire first. Whoever knows a lease_id can settle the claim, so it is null
-- for all but admins.
-- Calls: is_admin. Tables: queues, consumer_groups, partitions, journal, claims (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_claims(queue_name text DEFAULT NULL, group_name text DEFAULT NULL)
RETURNS TABLE (
    queue text, consumer_group text, partition_name text, group_id integer, partition_id bigint,
    lease_id uuid, consumer text, attempt smallint,
    claimed_from bigint, claimed_to bigint, acquired_at timestamptz, expires_at timestamptz, shared boolean
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        q.name, g.name, p.name, j.group_id, j.partition_id,
        CASE WHEN (SELECT penstock.is_admin()) THEN j.lease_id END, j.consumer, j.attempt,
        j.committed, j.claimed_to,
        coalesce(j.claimed_at, j.at), j.due_at, false
    FROM penstock.journal j
    JOIN penstock.consumer_groups g ON g.group_id = j.group_id
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    JOIN penstock.partitions p ON p.partition_id = j.partition_id
    WHERE j.due_at IS NOT NULL AND j.state = 'c'
      AND (list_claims.queue_name IS NULL OR q.name = list_claims.queue_name)
      AND (list_claims.group_name IS NULL OR g.name = list_claims.group_name)
      AND NOT EXISTS (
          SELECT 1 FROM penstock.journal n
          WHERE n.group_id = j.group_id AND n.partition_id = j.partition_id AND n.version > j.version
      )
    UNION ALL
    SELECT
        q.name, g.name, p.name, c.group_id, c.partition_id,
        CASE WHEN (SELECT penstock.is_admin()) THEN c.lease_id END, c.consumer, c.attempt,
        c.lo, c.hi, c.claimed_at, c.due_at, true
    FROM penstock.claims c
    JOIN penstock.consumer_groups g ON g.group_id = c.group_id
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    JOIN penstock.partitions p ON p.partition_id = c.partition_id
    WHERE c.lease_id IS NOT NULL
      AND (list_claims.queue_name IS NULL OR q.name = list_claims.queue_name)
      AND (list_claims.group_name IS NULL OR g.name = list_claims.group_name)
    ORDER BY 12
$$;

-- penstock.list_dead_letters(queue_name, group_name, wanted_reason, after_id, max_rows)
--
-- Lists the dead letters of a queue, oldest first, with their messages.
--
-- Parameters: group_name and wanted_reason - null for all; after_id - where the last page ended; max_rows - the
-- largest number of rows.
-- Returns: a row per dead letter.
-- Calls: find_queue, message_id. Tables: dead_letters, consumer_groups, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_dead_letters(
    queue_name text, group_name text DEFAULT NULL, wanted_reason text DEFAULT NULL,
    after_id bigint DEFAULT 0, max_rows integer DEFAULT 100
)
RETURNS TABLE (
    dead_letter_id bigint, consumer_group text, partition_name text, message_offset bigint, message_id uuid,
    created_at timestamptz, payload bytea, key text, headers jsonb,
    reason text, attempts smallint, first_error text, last_error text, consumer text, died_at timestamptz,
    traceback text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- Looked up before and not within the query, where an empty table would keep it from being asked at all.
    queue integer := penstock.find_queue(queue_name);
BEGIN
    RETURN QUERY
    SELECT
        d.dead_letter_id, g.name, coalesce(p.name, '(deleted)'), d.message_offset,
        penstock.message_id(d.partition_id, d.message_offset, d.created_at),
        d.created_at, d.payload, d.key, d.headers,
        d.reason, d.attempts, d.first_error, d.last_error, d.consumer, d.died_at, d.traceback
    FROM penstock.dead_letters d
    JOIN penstock.consumer_groups g ON g.group_id = d.group_id
    LEFT JOIN penstock.partitions p ON p.partition_id = d.partition_id
    WHERE d.queue_id = queue
      AND (list_dead_letters.group_name IS NULL OR g.name = list_dead_letters.group_name)
      AND (wanted_reason IS NULL OR d.reason = wanted_reason)
      AND d.dead_letter_id > after_id
    ORDER BY d.dead_letter_id
    LIMIT max_rows;
END
$$;

-- penstock.list_groups(queue_name)
--
-- Lists the groups of a queue, or of all queues, with the messages that wait and the claims that are held.
--
-- Parameters: queue_name - null for all.
-- Returns: a row per group, by queue and name.
-- Calls: find_queue, group_work. Tables: queues, consumer_groups, dead_letters (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_groups(queue_name text DEFAULT NULL)
RETURNS TABLE (
    queue text, name text, mode text, subscription text, created_at timestamptz, config jsonb, settings jsonb,
    lag bigint, depth bigint, ready bigint, claimed bigint, waiting bigint, enrolling boolean,
    oldest_since timestamptz, dead_letters bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted integer := CASE WHEN queue_name IS NOT NULL THEN penstock.find_queue(queue_name) END;
BEGIN
    RETURN QUERY
    SELECT
        q.name, g.name, g.mode, g.subscription, g.created_at, g.config, q.settings || g.config,
        coalesce(w.lag, 0)::bigint, coalesce(w.depth, 0)::bigint, w.ready, w.claimed, w.waiting,
        g.enrolled_to IS NOT NULL, w.oldest_since,
        (SELECT count(*) FROM penstock.dead_letters d WHERE d.group_id = g.group_id)
    FROM penstock.consumer_groups g
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    CROSS JOIN LATERAL (
        SELECT
            sum(greatest(w.head_offset - w.committed, 0)) AS lag,
            sum(greatest(w.head_offset - greatest(w.claimed_to, w.committed), 0)) AS depth,
            count(*) FILTER (WHERE w.state = 'r') AS ready,
            count(*) FILTER (WHERE w.state = 'c') AS claimed,
            count(*) FILTER (WHERE w.state = 't') AS waiting,
            min(w.since) FILTER (WHERE w.head_offset > w.committed) AS oldest_since
        FROM penstock.group_work(g.group_id) w
    ) w
    WHERE wanted IS NULL OR q.queue_id = wanted
    ORDER BY q.name, g.name;
END
$$;

-- penstock.nack(queue_name, group_name, partition_name, lease_id, failed_offset, error, wait)
--
-- Reports that a claim failed and ends it; see fail_claim for the consequences.
--
-- Parameters: the names and the lease id that pop returned; the others as in nack_claim.
-- Returns: 'retry' or 'dead letter'; raises object_not_in_prerequisite_state when the lease is not live.
-- Calls: find_group, find_partition, nack_claim, require_lease. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.nack(
    queue_name text, group_name text, partition_name text, lease_id uuid,
    failed_offset bigint DEFAULT NULL, error text DEFAULT NULL, wait float8 DEFAULT NULL
)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    outcome text := penstock.nack_claim(
        penstock.find_group(queue_name, group_name),
        penstock.find_partition(queue_name, partition_name),
        nack.lease_id, failed_offset, error, NULL, wait
    );
BEGIN
    PERFORM penstock.require_lease(outcome IS NOT NULL);
    RETURN outcome;
END
$$;

-- penstock.nack_claim(group_id, partition_id, lease_id, failed_offset, error, reason, wait, traceback)
--
-- Reports that a claim failed and ends it, for a group of either mode; see fail_claim and fail_range for the
-- consequences. If the lease has expired or is not the claim's own, nothing changes.
--
-- Parameters: failed_offset - the message that failed, if known: those before it count as done; error - the error;
-- reason - by which dead letters are grouped, null for the error; wait - seconds until the next attempt, null for the
-- backoff; traceback - stored with the dead letter, if there is one.
-- Returns: 'retry' or 'dead letter'; null when the lease is not live.
-- Calls: require_read_committed, use_lock_timeout, nack_ordered, nack_shared. Tables: consumer_groups (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.nack_claim(
    group_id      integer,
    partition_id  bigint,
    lease_id      uuid,
    failed_offset bigint DEFAULT NULL,
    error         text   DEFAULT NULL,
    reason        text   DEFAULT NULL,
    wait          float8 DEFAULT NULL,
    traceback     text   DEFAULT NULL
)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    shared boolean := EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = nack_claim.group_id AND g.mode = 'shared'
    );
BEGIN
    IF wait NOT BETWEEN 0 AND 3155760000 THEN
        RAISE EXCEPTION 'wait is % but must be from 0 to 3155760000 seconds', wait
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_read_committed('nack');
    PERFORM penstock.use_lock_timeout();
    reason := coalesce(reason, error, 'nack');
    IF shared THEN
        RETURN penstock.nack_shared(group_id, partition_id, lease_id, failed_offset, error, reason, wait, traceback);
    END IF;
    RETURN penstock.nack_ordered(group_id, partition_id, lease_id, failed_offset, error, reason, wait, traceback);
END
$$;

-- penstock.pop(queue_name, group_name, partition_name, max_messages, lease_time, consumer)
--
-- Claims a partition that has messages for a group and returns them, a row per message: SELECT * FROM
-- penstock.pop('orders', 'billing'). Settle with ack, nack or renew, by the lease id.
--
-- Parameters: partition_name - null for any; lease_time - seconds, null for the group's or the queue's; consumer - a
-- name for operators.
-- Returns: a row per message, in order; none if there is nothing to deliver.
-- Calls: pop_claims, unpack. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.pop(
    queue_name     text,
    group_name     text    DEFAULT 'default',
    partition_name text    DEFAULT NULL,
    max_messages   integer DEFAULT 100,
    lease_time     float8  DEFAULT NULL,
    consumer       text    DEFAULT NULL
)
RETURNS TABLE (
    lease_id uuid, lease_until timestamptz, popped_from text, attempt smallint,
    id uuid, message_offset bigint, key text, payload bytea, headers jsonb, created_at timestamptz
)
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.lease_id, c.lease_until, c.partition_of, c.attempt, m.*
    FROM penstock.pop_claims(
        queue_name, group_name, partition_name, max_messages, lease_time => pop.lease_time, consumer => pop.consumer
    ) c
    CROSS JOIN LATERAL penstock.unpack(
        c.partition_id, c.base_offset, c.count, c.created_at, c.run_skip, c.run_counts, c.run_times,
        c.body_start, c.body, c.ends, c.key_start, c.keys, c.key_ends, c.header_start, c.headers, c.header_ends
    ) m
$$;

-- penstock.pop_batch(requests)
--
-- Answers many pops in one call, as JSON: SELECT penstock.pop_batch('[{"request_id": "a", "queue_name": "orders",
-- "consumer_group": "billing", "batch_size": 10}]'). Requests of one group that take any partition get different
-- ones, and none that another request of the batch names; of several that name the same partition, one gets it.
-- Settle with ack, nack or renew, by the lease id.
--
-- Queues and groups are created on first use. A request for which that would have to wait for a push in progress gets
-- nothing this time, if there are other requests in the batch.
--
-- Parameters: requests - an array of objects: request_id and queue_name; partition_name ('*' or null: any),
-- consumer_group (default "default"), batch_size (largest number of messages, default 1), lease_time_seconds (0: the
-- group's or the queue's), consumer (a name for operators).
-- Returns: an object with an answer per request id: leaseId, leaseExpiresAt, queue, partition, messages [messageId,
-- payload, createdAt, traceId]. If there is nothing to deliver, leaseId is null and messages is empty. A value that
-- is not JSON is in payloadText, or in payloadBase64, instead of payload; traceId is the message's header of that
-- name.
-- Calls: require_read_committed, ensure_group, queue_lock_class, pop_claims_batch, unpack, payload_json. Tables:
-- queues, consumer_groups (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.pop_batch(requests jsonb)
RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted  record;
    lacking record;
    problem text;
    answers jsonb;
BEGIN
    PERFORM penstock.require_read_committed('pop_batch');
    IF jsonb_typeof(requests) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'requests must be a JSON array of objects' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT
        array_agg(r.request_id ORDER BY r.position) AS ids,
        array_agg(r.queue_name ORDER BY r.position) AS queues,
        array_agg(r.consumer_group ORDER BY r.position) AS groups,
        array_agg(r.partition_name ORDER BY r.position) AS partitions,
        array_agg(r.batch_size ORDER BY r.position) AS sizes,
        array_agg(r.lease_time ORDER BY r.position) AS leases,
        array_agg(r.consumer ORDER BY r.position) AS consumers,
        count(*)::integer AS many
    INTO wanted
    FROM (
        SELECT
            e.position, e.request ->> 'request_id' AS request_id, e.request ->> 'queue_name' AS queue_name,
            coalesce(e.request ->> 'consumer_group', 'default') AS consumer_group,
            nullif(e.request ->> 'partition_name', '*') AS partition_name,
            coalesce((e.request ->> 'batch_size')::integer, 1) AS batch_size,
            nullif((e.request ->> 'lease_time_seconds')::float8, 0) AS lease_time,
            e.request ->> 'consumer' AS consumer
        FROM jsonb_array_elements(requests) WITH ORDINALITY e (request, position)
    ) r;
    IF wanted.many = 0 THEN
        RETURN '{}';
    END IF;
    SELECT CASE
        WHEN r.id IS NULL THEN format('request %s has no request_id', r.position)
        WHEN r.queue IS NULL THEN format('request "%s" has no queue_name', r.id)
        WHEN r.size < 1 THEN format('request "%s": batch_size is %s but must be above 0', r.id, r.size)
        WHEN r.lease < 0 OR r.lease > 604800
            THEN format('request "%s": lease_time_seconds is %s but must be from 0 to 604800', r.id, r.lease)
        WHEN count(*) OVER (PARTITION BY r.id) > 1 THEN format('two requests have the request_id "%s"', r.id)
    END AS said
    INTO problem
    FROM unnest(wanted.ids, wanted.queues, wanted.sizes, wanted.leases) WITH ORDINALITY
        r (id, queue, size, lease, position)
    ORDER BY 1 NULLS LAST
    LIMIT 1;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;

    FOR lacking IN
        SELECT w.queue_name, w.group_name, count(*) AS many
        FROM unnest(wanted.queues, wanted.groups) w (queue_name, group_name)
        WHERE NOT EXISTS (
            SELECT 1 FROM penstock.queues q
            JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
            WHERE q.name = w.queue_name AND g.name = w.group_name
        )
        GROUP BY 1, 2
        ORDER BY 1, 2
    LOOP
        -- Making a group waits where its queue is being made or deleted; the others of the batch must not.
        IF lacking.many = wanted.many OR coalesce((
            SELECT pg_try_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id)
            FROM penstock.queues q WHERE q.name = lacking.queue_name
        ), false) THEN
            PERFORM penstock.ensure_group(lacking.queue_name, lacking.group_name);
        END IF;
    END LOOP;

    SELECT jsonb_object_agg(w.id, coalesce(a.answer, '{"leaseId": null, "messages": []}'))
    INTO answers
    FROM unnest(wanted.ids) WITH ORDINALITY w (id, position)
    LEFT JOIN (
        SELECT
            c.request,
            jsonb_build_object(
                'leaseId', min(c.lease_id::text), 'leaseExpiresAt', min(c.lease_until),
                'queue', min(wanted.queues[c.request]), 'partition', min(c.partition_of),
                'messages', jsonb_agg(
                    jsonb_build_object(
                        'messageId', m.id, 'createdAt', m.message_time, 'traceId', m.message_headers ->> 'traceId'
                    ) || penstock.payload_json(m.payload)
                    ORDER BY m.message_offset
                )
            ) AS answer
        FROM penstock.pop_claims_batch(
            wanted.queues, wanted.groups, wanted.partitions, wanted.sizes,
            array_fill(8388608::bigint, ARRAY[wanted.many]), array_fill(1, ARRAY[wanted.many]), wanted.leases,
            wanted.consumers, array_fill(false, ARRAY[wanted.many]), array_fill(NULL::text, ARRAY[wanted.many])
        ) c
        CROSS JOIN LATERAL penstock.unpack(
            c.partition_id, c.base_offset, c.count, c.created_at, c.run_skip, c.run_counts, c.run_times,
            c.body_start, c.body, c.ends, c.key_start, c.keys, c.key_ends, c.header_start, c.headers, c.header_ends
        ) m
        WHERE c.partition_id IS NOT NULL
        GROUP BY c.request
    ) a ON a.request = w.position;
    RETURN answers;
END
$$;

-- penstock.pop_claims(queue_name, group_name, partition_name, max_messages, max_bytes, max_partitions, lease_time,
--                     consumer, auto_ack, lows, passing, durable, first_use)
--
-- Claims partitions that have messages for a group and returns the messages, still packed. Queue and group come into
-- being on first use. It takes partitions from the front of the ready list, so the one that waited longest comes first;
-- it never locks a partition and never waits. With nothing to give it writes nothing.
--
-- Parameters: partition_name - null for any; max_messages and max_bytes - of each partition; lease_time - seconds,
-- null for the group's or the queue's; consumer - a name for operators; auto_ack - count as done what is handed out
-- (at most once); lows - for each of the queue's priorities, where in the ready list to begin: a client that has just taken an
-- entry looks no further back, until it does so again every few seconds. Null begins at the front; passing - ids of
-- partitions to leave alone; durable - false commits the caller's transaction without waiting for the disk, unless auto_ack:
-- a claim that a crash of the server undoes is delivered again. Only for a caller who does nothing else in it;
-- first_use - false: a queue or group that does not exist, or cannot be popped, has nothing to give.
-- Returns: for each claim one row per slice. `claimed_from` is where the claim begins, `entry_seq` which ready list entry
-- it had, `entry_level` which of the priorities, `shared` the group's mode.
-- Calls: ack_and_pop, which does the work. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.pop_claims(
    queue_name     text,
    group_name     text,
    partition_name text    DEFAULT NULL,
    max_messages   integer DEFAULT 100,
    max_bytes      bigint  DEFAULT 8388608,
    max_partitions integer DEFAULT 1,
    lease_time     float8  DEFAULT NULL,
    consumer       text    DEFAULT NULL,
    auto_ack       boolean DEFAULT false,
    lows           bigint[] DEFAULT NULL,
    passing        bigint[] DEFAULT NULL,
    durable        boolean  DEFAULT true,
    first_use      boolean  DEFAULT true
)
RETURNS TABLE (
    group_id integer, partition_id bigint, partition_of text, lease_id uuid, lease_until timestamptz,
    attempt smallint, claimed_from bigint, claimed_to bigint, entry_level integer, entry_seq bigint, shared boolean,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
    RETURN QUERY
    SELECT
        c.group_id, c.partition_id, c.partition_of, c.lease_id, c.lease_until, c.attempt, c.claimed_from, c.claimed_to,
        c.entry_level, c.entry_seq, c.shared, c.base_offset, c.count, c.created_at, c.run_skip, c.run_counts, c.run_times,
        c.body_start, c.body, c.ends, c.key_start, c.keys, c.key_ends, c.header_start, c.headers, c.header_ends
    FROM penstock.ack_and_pop(
        NULL, NULL, NULL, NULL, NULL, queue_name, group_name, partition_name, max_messages, max_bytes, max_partitions,
        lease_time, consumer, auto_ack, lows, durable, passing, first_use
    ) c;
END
$$;

-- penstock.pop_claims_batch(queue_names, group_names, partition_names, max_messages, max_bytes, max_partitions,
--                           lease_times, consumers, auto_acks, lows, max_total)
--
-- Answers many pops in one call: the form in which the clients send pops that come at the same time. Requests that
-- name a partition go first. Then those of one group that take any partition share one walk along the ready list: the first
-- of them gets the partition that waited longest, the second the next one. In an ordered group they leave alone what
-- others of the batch name, and of several that name the same partition one wins. In a shared group the same partition
-- may serve several, with ranges that do not overlap. Groups do not see one another.
--
-- It never waits. A group that does not exist is therefore not made here: making one waits for the pushes under way, and
-- everybody else in the batch would wait too.
--
-- Parameters: parallel arrays, one entry per request, with the meaning they have in pop_claims; lows - each a text such
-- as '{5,7}', because arrays in an array would have to be of one length; max_total - after so many bytes the answer is
-- full.
-- Returns: `request` (which one, from 1) and the rows of pop_claims. A request without a row has nothing to get. One
-- with a row but no partition_id was not looked at, because its group does not exist or the answer was full: it must
-- be asked again, alone.
-- Calls: require_read_committed, ack_and_pop. Tables: queues, consumer_groups, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.pop_claims_batch(
    queue_names     text[],
    group_names     text[],
    partition_names text[],
    max_messages    integer[],
    max_bytes       bigint[],
    max_partitions  integer[],
    lease_times     float8[],
    consumers       text[],
    auto_acks       boolean[],
    lows            text[],
    max_total       bigint DEFAULT 33554432
)
RETURNS TABLE (
    request integer,
    group_id integer, partition_id bigint, partition_of text, lease_id uuid, lease_until timestamptz,
    attempt smallint, claimed_from bigint, claimed_to bigint, entry_level integer, entry_seq bigint, shared boolean,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    wish     record;
    reader   record;
    named    boolean := array_position(partition_names, NULL) IS NOT NULL
                        AND EXISTS (SELECT 1 FROM unnest(partition_names) n WHERE n IS NOT NULL);
    passing  bigint[];
    wanted   integer;
    asked    integer;
    got      integer;
    turn     integer;
    share    integer;
    left_over bigint := max_total;
    before   bigint;
    begun    bigint;
BEGIN
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(group_names), cardinality(partition_names), cardinality(max_messages), cardinality(max_bytes),
        cardinality(max_partitions), cardinality(lease_times), cardinality(consumers), cardinality(auto_acks),
        cardinality(lows)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'the arrays of a batch of pops must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (1 <= ALL (max_messages) AND 1 <= ALL (max_bytes) AND 1 <= ALL (max_partitions)) IS NOT TRUE
       OR 0 >= ANY (lease_times) OR 604800 < ANY (lease_times)
    THEN
        RAISE EXCEPTION 'max_messages, max_bytes, max_partitions and lease_time must be above 0, and lease_time at most 604800'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_read_committed('pop');
    FOR wish IN
        -- Requests that are alike are one wish; those that name a partition come first.
        SELECT
            w.queue_name, w.group_name, w.partition_name, w.most, w.most_bytes, w.lease_time, w.consumer, w.auto_ack,
            w.low::bigint[] AS lows,
            array_agg(w.position::integer ORDER BY w.position) AS requests,
            array_agg(CASE WHEN w.partition_name IS NULL THEN w.partitions ELSE 1 END ORDER BY w.position) AS shares,
            sum(CASE WHEN w.partition_name IS NULL THEN w.partitions ELSE 1 END)::integer AS wanted
        FROM unnest(
            queue_names, group_names, partition_names, max_messages, max_bytes, max_partitions, lease_times,
            consumers, auto_acks, lows
        ) WITH ORDINALITY w (
            queue_name, group_name, partition_name, most, most_bytes, partitions, lease_time, consumer, auto_ack, low,
            position
        )
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
        ORDER BY w.partition_name IS NULL, min(w.position)
    LOOP
        SELECT q.queue_id, g.mode INTO reader
        FROM penstock.queues q
        JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
        WHERE q.name = wish.queue_name AND g.name = wish.group_name;
        IF NOT FOUND OR left_over <= 0 THEN
            partition_id := NULL;
            body := NULL;
            ends := NULL;
            keys := NULL;
            key_ends := NULL;
            headers := NULL;
            header_ends := NULL;
            FOREACH request IN ARRAY wish.requests LOOP
                RETURN NEXT;
            END LOOP;
            CONTINUE;
        END IF;
        passing := NULL;
        IF named AND wish.partition_name IS NULL AND reader.mode = 'ordered' THEN
            passing := ARRAY(
                SELECT p.partition_id
                FROM unnest(queue_names, group_names, partition_names) n (queue_name, group_name, partition_name)
                CROSS JOIN LATERAL (
                    SELECT p.partition_id FROM penstock.partitions p
                    WHERE p.queue_id = reader.queue_id AND p.name = n.partition_name
                    LIMIT 1
                ) p
                WHERE n.queue_name = wish.queue_name AND n.group_name = wish.group_name
            );
        END IF;
        wanted := wish.wanted;
        turn := 1;
        share := wish.shares[1];
        LOOP
            -- No more at once than could be the rest of a full answer.
            asked := greatest(1, least(wanted, left_over / wish.most_bytes));
            got := 0;
            before := NULL;
            FOR
                group_id, partition_id, partition_of, lease_id, lease_until, attempt, claimed_from, claimed_to,
                entry_level, entry_seq, shared, base_offset, count, created_at, run_skip, run_counts, run_times,
                body_start, body, ends, key_start, keys, key_ends, header_start, headers, header_ends
            IN
                SELECT
                    c.group_id, c.partition_id, c.partition_of, c.lease_id, c.lease_until, c.attempt, c.claimed_from,
                    c.claimed_to, c.entry_level, c.entry_seq, c.shared, c.base_offset, c.count, c.created_at, c.run_skip,
                    c.run_counts, c.run_times, c.body_start, c.body, c.ends, c.key_start, c.keys, c.key_ends,
                    c.header_start, c.headers, c.header_ends
                FROM penstock.ack_and_pop(
                    NULL, NULL, NULL, NULL, NULL, wish.queue_name, wish.group_name, wish.partition_name, wish.most,
                    wish.most_bytes, asked, wish.lease_time, wish.consumer, wish.auto_ack, wish.lows,
                    passing => passing, first_use => true
                ) c
            LOOP
                IF (partition_id, claimed_from) IS DISTINCT FROM (before, begun) THEN
                    before := partition_id;
                    begun := claimed_from;
                    got := got + 1;
                    IF share = 0 THEN
                        turn := turn + 1;
                        share := wish.shares[turn];
                    END IF;
                    share := share - 1;
                END IF;
                request := wish.requests[turn];
                left_over := left_over - octet_length(body) - coalesce(octet_length(headers), 0);
                RETURN NEXT;
            END LOOP;
            wanted := wanted - got;
            EXIT WHEN wanted = 0 OR got = 0 OR left_over <= 0;
            -- An ordered group has given each partition that it had. A shared one has carved new ranges meanwhile.
            EXIT WHEN reader.mode = 'ordered' AND (got < asked OR wish.partition_name IS NOT NULL);
        END LOOP;
        IF left_over <= 0 THEN
            partition_id := NULL;
            body := NULL;
            ends := NULL;
            keys := NULL;
            key_ends := NULL;
            headers := NULL;
            header_ends := NULL;
            FOREACH request IN ARRAY wish.requests[turn + 1 :] LOOP
                RETURN NEXT;
            END LOOP;
        END IF;
    END LOOP;
END
$$;

-- penstock.redrive(queue_name, group_name, wanted_reason, wanted_ids, max_rows)
--
-- Delivers dead letters again, a chunk at a time, only to the group that failed: they move to that group's private
-- lane, in one transaction. Each has its original id in the header penstock-origin, and the name of its original
-- partition in penstock-partition; its attempts start again. A dead letter that failed with rows of a flow that are
-- made of several messages has their ids in penstock-rows: the flow makes only these rows of it.
--
-- Parameters: those of take_dead_letters.
-- Returns: the number redriven; call it again until it returns 0.
-- Calls: take_dead_letters, pack_messages, lock_partitions, append_segments, find_queue, require_read_committed,
-- use_lock_timeout, message_id. Tables: partitions (read, insert).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.redrive(
    queue_name text, group_name text DEFAULT NULL, wanted_reason text DEFAULT NULL, wanted_ids bigint[] DEFAULT NULL,
    max_rows integer DEFAULT 1000
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    queue  integer := penstock.find_queue(queue_name);
    letter record;
    packed record;
    target bigint;
    taken  bigint := 0;
BEGIN
    PERFORM penstock.require_read_committed('redrive');
    PERFORM penstock.use_lock_timeout();
    FOR letter IN
        SELECT
            d.group_id, '~redrive/' || d.group_id AS lane, count(*) AS letters,
            array_agg(d.payload ORDER BY d.dead_letter_id) AS payloads,
            array_agg(d.key ORDER BY d.dead_letter_id) AS keys,
            array_agg(jsonb_strip_nulls(jsonb_build_object('penstock-partition', (
                SELECT p.name FROM penstock.partitions p WHERE p.partition_id = d.partition_id
            ))) || jsonb_build_object(
                'penstock-origin', penstock.message_id(d.partition_id, d.message_offset, d.created_at)::text
            ) || CASE
                -- Outside of lanes these headers are the sender's own, and say nothing.
                WHEN EXISTS (
                    SELECT FROM penstock.partitions p WHERE p.partition_id = d.partition_id AND p.lane_of IS NOT NULL
                ) THEN coalesce(d.headers, '{}')
                ELSE coalesce(d.headers, '{}') - ARRAY['penstock-partition', 'penstock-origin', 'penstock-rows']
            END || jsonb_strip_nulls(jsonb_build_object(
                'penstock-rows', array_to_string(d.row_ids, ',')
            )) ORDER BY d.dead_letter_id) AS headers
        FROM penstock.take_dead_letters(queue_name, group_name, wanted_reason, wanted_ids, max_rows) d
        GROUP BY d.group_id
        ORDER BY d.group_id
    LOOP
        INSERT INTO penstock.partitions (queue_id, name, lane_of)
        VALUES (queue, letter.lane, letter.group_id)
        ON CONFLICT DO NOTHING;
        -- Their limits were checked when they were pushed: one that was lowered since must not keep them dead.
        SELECT
            array_agg(p.count ORDER BY p.nth) AS counts,
            array_agg(p.body ORDER BY p.nth) AS bodies, array_agg(p.ends ORDER BY p.nth) AS ends,
            array_agg(p.keys ORDER BY p.nth) AS keys, array_agg(p.key_ends ORDER BY p.nth) AS key_ends,
            array_agg(p.headers ORDER BY p.nth) AS headers, array_agg(p.header_ends ORDER BY p.nth) AS header_ends
        INTO packed
        FROM penstock.pack_messages(letter.payloads, letter.lane, letter.keys, letter.headers, NULL, 1)
            WITH ORDINALITY p (place, count, body, ends, keys, key_ends, headers, header_ends, positions, nth);
        target := (penstock.lock_partitions(ARRAY[queue_name], ARRAY[letter.lane]))[1];
        -- A new statement, hence a new snapshot: under the lock it sees every segment there is.
        PERFORM penstock.append_segments(
            array_fill(target, ARRAY[cardinality(packed.counts)]), packed.counts, packed.bodies, packed.ends,
            packed.keys, packed.key_ends, packed.headers, packed.header_ends
        );
        taken := taken + letter.letters;
    END LOOP;
    RETURN taken;
END
$$;

-- penstock.release_claim(group_id, partition_id, lease_id)
--
-- Gives a claim up, for a group of either mode: messages that are not done are delivered again at once, and this
-- delivery does not count as an attempt. Without a lease id an admin takes the claim away from its holder, live or
-- not; in a shared group, every claim of the partition.
--
-- Parameters: lease_id - null to force, for admins.
-- Returns: whether there was such a claim. An expired lease is none: that delivery counts as an attempt.
-- Calls: is_admin, require_read_committed, use_lock_timeout, release_ordered, release_shared. Tables: consumer_groups
-- (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.release_claim(group_id integer, partition_id bigint, lease_id uuid DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
BEGIN
    IF lease_id IS NULL AND NOT penstock.is_admin() THEN
        RAISE EXCEPTION 'permission denied: to release a claim without its lease_id needs the admin role'
            USING ERRCODE = 'insufficient_privilege', HINT = 'Give the claim''s lease_id.';
    END IF;
    PERFORM penstock.require_read_committed('release');
    PERFORM penstock.use_lock_timeout();
    IF EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = release_claim.group_id AND g.mode = 'shared'
    ) THEN
        RETURN penstock.release_shared(group_id, partition_id, lease_id);
    END IF;
    RETURN penstock.release_ordered(group_id, partition_id, lease_id);
END
$$;

-- penstock.renew(queue_name, group_name, partition_name, lease_id, lease_time)
--
-- Extends the lease of a claim, counted from now.
--
-- Parameters: the names and the lease id that pop returned; lease_time - seconds, null for the group's or the
-- queue's.
-- Returns: the new deadline; raises object_not_in_prerequisite_state when the lease is not live.
-- Calls: find_group, find_partition, renew_claims, require_lease. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.renew(
    queue_name text, group_name text, partition_name text, lease_id uuid, lease_time float8 DEFAULT NULL
)
RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    until timestamptz := (penstock.renew_claims(
        ARRAY[penstock.find_group(queue_name, group_name)],
        ARRAY[penstock.find_partition(queue_name, partition_name)],
        ARRAY[renew.lease_id],
        lease_time
    ))[1];
BEGIN
    PERFORM penstock.require_lease(until IS NOT NULL);
    RETURN until;
END
$$;

-- penstock.renew_claims(group_ids, partition_ids, lease_ids, lease_time, durable)
--
-- Extends the leases of any number of claims, of groups of either mode, counted from now. If a lease has expired or
-- is not the claim's own, nothing changes.
--
-- Parameters: parallel arrays, one entry per claim; lease_time - seconds, null for the group's or the queue's;
-- durable - false commits the caller's transaction without waiting for the disk, as in pop_claims.
-- Returns: for each claim, in the order given, its new deadline, or null where it was not renewed.
-- Calls: require_read_committed, use_lock_timeout, renew_ordered, renew_shared. Tables: consumer_groups (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.renew_claims(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], lease_time float8 DEFAULT NULL,
    durable boolean DEFAULT true
)
RETURNS timestamptz[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    part    record;
    answers timestamptz[];
    renewed timestamptz[];
BEGIN
    IF lease_time <= 0 OR lease_time > 604800 THEN
        RAISE EXCEPTION 'lease_time is % but must be above 0 and at most 604800 seconds', lease_time
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM penstock.require_read_committed('renew');
    END IF;
    IF current_setting('penstock.lock_timeout', true) <> '' THEN
        PERFORM penstock.use_lock_timeout();
    END IF;
    IF NOT durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF NOT EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = ANY (group_ids) AND g.mode = 'shared'
    ) THEN
        RETURN penstock.renew_ordered(group_ids, partition_ids, lease_ids, lease_time);
    END IF;
    IF cardinality(group_ids) = 1 OR NOT EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = ANY (group_ids) AND g.mode <> 'shared'
    ) THEN
        RETURN penstock.renew_shared(group_ids, partition_ids, lease_ids, lease_time);
    END IF;
    -- Ordered groups first: all callers take the locks in the same order.
    FOR part IN
        SELECT
            coalesce(g.mode = 'shared', false) AS shared,
            array_agg(u.position ORDER BY u.position) AS positions,
            array_agg(u.group_id ORDER BY u.position) AS group_ids,
            array_agg(u.partition_id ORDER BY u.position) AS partition_ids,
            array_agg(u.lease_id ORDER BY u.position) AS lease_ids
        FROM unnest(group_ids, partition_ids, lease_ids) WITH ORDINALITY u (group_id, partition_id, lease_id, position)
        LEFT JOIN penstock.consumer_groups g ON g.group_id = u.group_id
        GROUP BY 1
        ORDER BY 1
    LOOP
        IF part.shared THEN
            answers := penstock.renew_shared(part.group_ids, part.partition_ids, part.lease_ids, lease_time);
        ELSE
            answers := penstock.renew_ordered(part.group_ids, part.partition_ids, part.lease_ids, lease_time);
        END IF;
        FOR i IN 1 .. cardinality(answers) LOOP
            renewed[part.positions[i]] := answers[i];
        END LOOP;
    END LOOP;
    RETURN renewed;
END
$$;

-- penstock.seek_partitions(queue_name, group_name, partition_name, to_offset, to_time, to_end, preview,
--                          after_partition, max_partitions)
--
-- Moves a group to another position, a chunk of partitions at a time, concurrently with pushes and pops. A claim that
-- is held there loses its lease. Call it again with the returned position until that is null.
--
-- Parameters: partition_name - null for all; to_offset, to_time or to_end ('earliest', 'latest') - the new position:
-- exactly one of them; preview - change nothing, only return what would happen.
-- Returns: one row: the partitions visited and moved, the messages that will be delivered again and that will be
-- skipped, the claims that lose their lease, the partitions that were busy (call again), and the position for the
-- next call.
-- Calls: find_group, find_partition, require_read_committed, seek_partition. Tables: consumer_groups (lock),
-- partitions, queues (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.seek_partitions(
    queue_name      text,
    group_name      text,
    partition_name  text        DEFAULT NULL,
    to_offset       bigint      DEFAULT NULL,
    to_time         timestamptz DEFAULT NULL,
    to_end          text        DEFAULT NULL,
    preview         boolean     DEFAULT false,
    after_partition bigint      DEFAULT 0,
    max_partitions  integer     DEFAULT 1000
)
RETURNS TABLE (
    visited bigint, moved bigint, redelivered bigint, skipped bigint, revoked bigint, busy bigint, next_partition bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    seeking integer := penstock.find_group(queue_name, group_name);
    wanted  bigint := CASE
        WHEN partition_name IS NOT NULL THEN penstock.find_partition(queue_name, partition_name)
    END;
BEGIN
    PERFORM penstock.require_read_committed('seek');
    IF num_nonnulls(to_offset, to_time, to_end) <> 1 OR to_end NOT IN ('earliest', 'latest') OR to_offset < 0 THEN
        RAISE EXCEPTION 'seek requires exactly one of: an offset of 0 or above, a time, earliest, latest'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT preview THEN
        -- Against delete_group, which would not see what is appended here.
        PERFORM 1 FROM penstock.consumer_groups g WHERE g.group_id = seeking FOR KEY SHARE;
        IF NOT FOUND THEN
            PERFORM penstock.find_group(queue_name, group_name);
        END IF;
    END IF;
    SELECT
        count(*), count(*) FILTER (WHERE s.outcome = 'moved'),
        coalesce(sum(greatest(s.was_at - s.now_at, 0)) FILTER (WHERE s.outcome = 'moved'), 0),
        coalesce(sum(greatest(s.now_at - s.was_at, 0)) FILTER (WHERE s.outcome = 'moved'), 0),
        count(*) FILTER (WHERE s.revoked AND s.outcome = 'moved'), count(*) FILTER (WHERE s.outcome = 'busy'),
        CASE WHEN count(*) = max_partitions THEN max(p.partition_id) END
    INTO visited, moved, redelivered, skipped, revoked, busy, next_partition
    FROM (
        SELECT p.partition_id FROM penstock.partitions p
        JOIN penstock.queues q ON q.queue_id = p.queue_id
        WHERE q.name = queue_name AND p.partition_id > after_partition AND p.lane_of IS NULL
          AND (wanted IS NULL OR p.partition_id = wanted)
        ORDER BY p.partition_id
        LIMIT max_partitions
    ) p
    CROSS JOIN LATERAL penstock.seek_partition(seeking, p.partition_id, to_offset, to_time, to_end, preview) s;
    RETURN NEXT;
END
$$;

-- penstock.configure_database(create_on_first_use)
--
-- Changes settings of the whole database. With create_on_first_use off, a push, pop or configure of a queue that does
-- not exist fails, and so does a pop of a group that does not: a typing error then creates nothing. Partitions are
-- still created on first use.
--
-- Parameters: create_on_first_use - whether queues and groups are created when they are first used; null keeps it.
-- Returns: all settings of the database, after the change.
-- Calls: nothing. Tables: database_settings (insert, update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.configure_database(create_on_first_use boolean DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF configure_database.create_on_first_use IS NOT NULL THEN
        INSERT INTO penstock.database_settings AS d (create_on_first_use)
        VALUES (configure_database.create_on_first_use)
        ON CONFLICT (one) DO UPDATE SET create_on_first_use = excluded.create_on_first_use
        WHERE d.create_on_first_use <> excluded.create_on_first_use;
    END IF;
    RETURN jsonb_build_object(
        'create_on_first_use', coalesce((SELECT d.create_on_first_use FROM penstock.database_settings d), true)
    );
END
$$;

-- penstock.configure_partition(queue_name, partition_name, priority)
--
-- Changes a partition, creating it on first use.
--
-- Parameters: priority - higher is served first; null keeps it. It takes effect with the next entry in the ready
-- list.
-- Returns: nothing.
-- Calls: ensure_partitions, find_partition. Tables: queues, partitions (update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.configure_partition(
    queue_name text, partition_name text, priority integer DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target bigint;
BEGIN
    IF configure_partition.priority NOT BETWEEN -32768 AND 32767 THEN
        RAISE EXCEPTION 'priority is % but must be from -32768 to 32767', configure_partition.priority
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.ensure_partitions(ARRAY[queue_name], ARRAY[partition_name]);
    UPDATE penstock.queues q
    SET priorities = ARRAY(
        SELECT DISTINCT level FROM unnest(q.priorities || configure_partition.priority::smallint) level ORDER BY 1 DESC
    )
    WHERE q.name = queue_name AND configure_partition.priority <> ALL (q.priorities);
    -- Not within the update: its plan would be made with a snapshot in which a new partition does not exist yet.
    target := penstock.find_partition(queue_name, partition_name);
    UPDATE penstock.partitions p
    SET priority = configure_partition.priority
    WHERE p.partition_id = target
      AND p.priority <> configure_partition.priority;
END
$$;

-- penstock.configure_queue(queue_name, changes, description)
--
-- Changes a queue's settings, creating the queue on first use. Takes effect with the next push, pop or sweep.
--
-- Parameters: changes - settings to set; JSON null resets one to its default; description - null keeps it.
-- Returns: all settings of the queue, after the change.
-- Calls: refuse_first_use, checked_config, require_names, end_waits. Tables: queues (update), consumer_groups (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.configure_queue(
    queue_name text, changes jsonb DEFAULT '{}', description text DEFAULT NULL
)
RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    effective jsonb;
BEGIN
    PERFORM penstock.require_names(queue_name);
    PERFORM penstock.refuse_first_use(ARRAY[queue_name]);
    INSERT INTO penstock.queues (name) VALUES (queue_name) ON CONFLICT DO NOTHING;
    UPDATE penstock.queues q
    SET config = penstock.checked_config(q.config, changes),
        description = coalesce(configure_queue.description, q.description),
        limited_at = CASE WHEN changes ? 'max_attempts' THEN clock_timestamp() ELSE q.limited_at END
    WHERE q.name = queue_name
    RETURNING q.settings INTO effective;
    IF changes ?| ARRAY['delay', 'quiet_period', 'window_buffer'] THEN
        PERFORM penstock.end_waits(ARRAY(
            SELECT g.group_id FROM penstock.consumer_groups g
            WHERE g.queue_id = (SELECT q.queue_id FROM penstock.queues q WHERE q.name = queue_name)
        ));
    END IF;
    RETURN effective;
END
$$;

-- penstock.create_partition(queue_name, partition_name, priority)
--
-- Creates a partition that must not exist yet, and its queue on first use. A push creates partitions too.
--
-- Parameters: priority - higher is served first.
-- Returns: nothing; raises duplicate_object when the partition exists.
-- Calls: configure_partition. Tables: queues, partitions (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.create_partition(
    queue_name text, partition_name text, priority integer DEFAULT 0
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM penstock.partitions p JOIN penstock.queues q ON q.queue_id = p.queue_id
        WHERE q.name = queue_name AND p.name = partition_name
    ) THEN
        RAISE EXCEPTION 'partition "%" of queue "%" exists already', partition_name, queue_name
            USING ERRCODE = 'duplicate_object';
    END IF;
    PERFORM penstock.configure_partition(queue_name, partition_name, priority);
END
$$;

-- penstock.create_queue(queue_name, config, description)
--
-- Creates a queue that must not exist yet. A push creates queues too, with default settings.
--
-- Parameters: config - settings as a JSON object (see penstock.settings()); description - free text.
-- Returns: nothing; raises duplicate_object when the queue exists.
-- Calls: require_names, checked_config. Tables: queues (insert).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.create_queue(
    queue_name text, config jsonb DEFAULT '{}', description text DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.require_names(queue_name);
    INSERT INTO penstock.queues (name, config, description)
    VALUES (queue_name, penstock.checked_config('{}', create_queue.config), create_queue.description)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'queue "%" exists already', queue_name
            USING ERRCODE = 'duplicate_object', HINT = 'Change its settings with configure.';
    END IF;
END
$$;

-- penstock.delete_partition(queue_name, partition_name)
--
-- Deletes a partition with its messages. Waits at most `penstock.lock_timeout` for pushes to it that are in progress.
-- A later push creates it again, from offset 0 and with other message ids.
--
-- Parameters: the names.
-- Returns: the number of messages deleted; raises undefined_object if there is no such partition.
-- Calls: use_lock_timeout, find_partition, delete_partitions. Tables: none of its own.
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.delete_partition(queue_name text, partition_name text)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
BEGIN
    PERFORM penstock.use_lock_timeout();
    RETURN penstock.delete_partitions(ARRAY[penstock.find_partition(queue_name, partition_name)]);
END
$$;

-- penstock.delete_queue(queue_name)
--
-- Deletes a queue with its partitions, messages, groups and dead letters. Waits at most `penstock.lock_timeout` for
-- pushes that are in progress. A later push creates it again.
--
-- Parameters: queue_name.
-- Returns: the number of messages deleted; raises undefined_object if there is no such queue.
-- Calls: find_queue, use_lock_timeout, lock_queue, delete_partitions. Tables: queues, consumer_groups, dead_letters,
-- archives, archive_files (delete), partitions (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.delete_queue(queue_name text)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    queue    integer := penstock.find_queue(queue_name);
    messages bigint;
BEGIN
    PERFORM penstock.use_lock_timeout();
    -- Partitions first, in the order of a push, or the two deadlock.
    messages := penstock.delete_partitions(
        ARRAY(SELECT p.partition_id FROM penstock.partitions p WHERE p.queue_id = queue)
    );
    -- Against a partition that is being made for this queue right now.
    PERFORM penstock.lock_queue(queue);
    messages := messages + penstock.delete_partitions(
        ARRAY(SELECT p.partition_id FROM penstock.partitions p WHERE p.queue_id = queue)
    );
    DELETE FROM penstock.dead_letters d WHERE d.queue_id = queue;
    DELETE FROM penstock.archive_files f
    USING penstock.archives a
    WHERE a.archive_id = f.archive_id AND a.queue_id = queue;
    DELETE FROM penstock.archives a WHERE a.queue_id = queue;
    DELETE FROM penstock.consumer_groups g WHERE g.queue_id = queue;
    DELETE FROM penstock.queues q WHERE q.queue_id = queue;
    RETURN messages;
END
$$;

-- penstock.get(id)
--
-- Finds one message by its id: SELECT * FROM penstock.get('…').
--
-- Parameters: id - a message id.
-- Returns: the message with its queue and partition; no row when there is none, or no longer.
-- Calls: get_segment, unpack. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.get(id uuid)
RETURNS TABLE (
    queue_name text, partition_name text,
    message_offset bigint, key text, payload bytea, headers jsonb, created_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.queue_name, s.partition_name, m.message_offset, m.message_key, m.payload, m.message_headers, m.message_time
    FROM penstock.get_segment(get.id) s
    CROSS JOIN LATERAL penstock.unpack(
        s.partition_id, s.base_offset, s.count, s.created_at, s.run_skip, s.run_counts, s.run_times,
        s.body_start, s.body, s.ends, s.key_start, s.keys, s.key_ends, s.header_start, s.headers, s.header_ends
    ) m
$$;

-- penstock.get_segment(id)
--
-- Finds one message by its id, still packed. The id contains the address, so this is one index probe.
--
-- Parameters: id - a message id.
-- Returns: queue, partition and a slice of one message; no row when there is no such message, or no longer.
-- Calls: message_address, message_id, segment_slices, time_in_runs. Tables: queues, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.get_segment(id uuid)
RETURNS TABLE (
    queue_name text, partition_name text, partition_id bigint,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT q.name, p.name, p.partition_id, s.*
    FROM penstock.message_address(get_segment.id) a
    JOIN penstock.partitions p ON p.partition_id = a.partition_id
    JOIN penstock.queues q ON q.queue_id = p.queue_id
    CROSS JOIN LATERAL penstock.segment_slices(a.partition_id, a.message_offset, a.message_offset + 1) s
    -- The same offset with another time is another message: the id is forged or from another database.
    WHERE penstock.message_id(
        a.partition_id, a.message_offset, penstock.time_in_runs(s.created_at, s.run_counts, s.run_times, s.run_skip)
    ) = get_segment.id
$$;

-- penstock.list_partitions(queue_name, partition_name, after_name, max_rows)
--
-- Lists the partitions of a queue, or one of them, a page at a time.
--
-- Parameters: partition_name - null for all; after_name - where the last page ended; max_rows - null for all.
-- Returns: a row per partition, by name: its positions and the time of its newest message.
-- Calls: find_queue, find_partition, partition_span. Tables: partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_partitions(
    queue_name     text,
    partition_name text    DEFAULT NULL,
    after_name     text    DEFAULT NULL,
    max_rows       integer DEFAULT NULL
)
RETURNS TABLE (
    name text, partition_id bigint, priority smallint, created_at timestamptz,
    floor_offset bigint, head_offset bigint, newest_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- A generic plan would visit all partitions to describe one.
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    queue  integer := penstock.find_queue(queue_name);
    wanted bigint := CASE
        WHEN partition_name IS NOT NULL THEN penstock.find_partition(queue_name, partition_name)
    END;
BEGIN
    RETURN QUERY
    SELECT p.name, p.partition_id, p.priority, p.created_at, s.floor_offset, s.head_offset, s.newest_at
    FROM (
        SELECT * FROM penstock.partitions p
        WHERE p.queue_id = queue AND p.lane_of IS NULL
          AND (wanted IS NULL OR p.partition_id = wanted)
          AND (after_name IS NULL OR p.name > after_name)
        ORDER BY p.name
        LIMIT max_rows
    ) p
    CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
    ORDER BY p.name;
END
$$;

-- penstock.list_queues(queue_name)
--
-- Lists the queues, or one of them. Messages are subtracted, not counted, but every partition is visited.
--
-- Parameters: queue_name - null for all; a name that does not exist is an error.
-- Returns: a row per queue, by name.
-- Calls: find_queue, partition_span. Tables: queues, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_queues(queue_name text DEFAULT NULL)
RETURNS TABLE (
    name text, description text, created_at timestamptz, config jsonb, settings jsonb,
    partitions bigint, messages bigint, dropped bigint, newest_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted integer := CASE WHEN queue_name IS NOT NULL THEN penstock.find_queue(queue_name) END;
BEGIN
    RETURN QUERY
    SELECT
        q.name, q.description, q.created_at, q.config, q.settings,
        t.partitions, coalesce(t.messages, 0)::bigint, coalesce(t.dropped, 0)::bigint, t.newest_at
    FROM penstock.queues q
    CROSS JOIN LATERAL (
        SELECT
            count(*) AS partitions, sum(s.head_offset - s.floor_offset) AS messages,
            sum(s.floor_offset) AS dropped, max(s.newest_at) AS newest_at
        FROM penstock.partitions p
        CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
        WHERE p.queue_id = q.queue_id AND p.lane_of IS NULL
    ) t
    WHERE wanted IS NULL OR q.queue_id = wanted
    ORDER BY q.name;
END
$$;

-- penstock.message_address(id)
--
-- Reads the address out of a message's id: the inverse of message_id.
--
-- Parameters: id - a message id.
-- Returns: partition, offset and time (in whole milliseconds); no row when the uuid is not a message id.
-- Calls: nothing. Tables: none.
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.message_address(id uuid)
RETURNS TABLE (partition_id bigint, message_offset bigint, created_ms bigint)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT
        ((high & 4095) << 20) | ((low >> 42) & 1048575),
        low & 4398046511103,
        (high >> 16) & 281474976710655
    FROM (
        SELECT
            ('x' || left(hex, 16))::bit(64)::bigint AS high,
            ('x' || right(hex, 16))::bit(64)::bigint AS low
        FROM replace(id::text, '-', '') hex
    ) halves
    WHERE (high >> 12) & 15 = 8 AND (low >> 62) & 3 = 2
$$;

-- penstock.message_id(partition_id, message_offset, created_at)
--
-- Computes a message's id: a UUIDv8 that is an address. 48 bits of milliseconds since 1970, 32 bits of
-- partition id, 42 bits of offset, and the 6 bits that mark a UUIDv8. Ids sort by time, then by partition and offset.
--
-- Parameters: the message's partition, its offset there, and its time.
-- Returns: the id.
-- Calls: nothing. Tables: none.
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.message_id(
    partition_id bigint, message_offset bigint, created_at timestamptz
)
RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT (
        lpad(to_hex(
            (floor(extract(epoch FROM created_at) * 1000)::bigint << 16) | 32768 | (partition_id >> 20)
        ), 16, '0')
        || to_hex((-9223372036854775808) | ((partition_id & 1048575) << 42) | message_offset)
    )::uuid
$$;

-- penstock.offsets_at(partition_ids, moment)
--
-- Finds a time in each of some partitions.
--
-- Parameters: partition_ids, moment.
-- Returns: for each, in the order given, the first offset whose message is not older than `moment`.
-- Calls: offset_at. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.offsets_at(partition_ids bigint[], moment timestamptz)
RETURNS bigint[]
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    -- Staged segments have negative partition ids and are not visible here.
    SELECT array_agg(
        CASE WHEN w.partition_id > 0 THEN penstock.offset_at(w.partition_id, moment) ELSE 0 END ORDER BY w.position
    )
    FROM unnest(partition_ids) WITH ORDINALITY w (partition_id, position)
$$;

-- penstock.purge(queue_name, partition_name)
--
-- Drops all messages of a queue or of one partition, including scheduled ones, and deletes their dedupe ids. Offsets
-- continue from where they were: no offset is used twice. Pushes are blocked only in partitions that have scheduled
-- messages or dedupe ids; messages that they add meanwhile stay.
--
-- Parameters: partition_name - null for all partitions of the queue.
-- Returns: the number of messages dropped.
-- Calls: find_queue, find_partition, use_lock_timeout, forget_pushes, partition_span, drop_below. Tables: partitions
-- (lock), scheduled, dedupe_ids (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.purge(queue_name text, partition_name text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    queue  integer := penstock.find_queue(queue_name);
    wanted bigint := CASE
        WHEN partition_name IS NOT NULL THEN penstock.find_partition(queue_name, partition_name)
    END;
    pushed bigint[];
BEGIN
    PERFORM penstock.use_lock_timeout();
    -- Locked before any segment is, in the order of a push.
    pushed := ARRAY(
        SELECT p.partition_id FROM penstock.partitions p
        WHERE p.queue_id = queue AND (wanted IS NULL OR p.partition_id = wanted) AND p.partition_id IN (
            SELECT s.partition_id FROM penstock.scheduled s WHERE s.queue_id = queue
            UNION ALL
            SELECT k.partition_id FROM penstock.dedupe_ids k WHERE k.queue_id = queue
        )
        ORDER BY p.partition_id
        FOR NO KEY UPDATE
    );
    RETURN penstock.forget_pushes(pushed) + (
        SELECT coalesce(sum(d.dropped_messages), 0)::bigint
        FROM (
            -- In the order of maintain, which locks segments too.
            SELECT p.partition_id FROM penstock.partitions p
            WHERE p.queue_id = queue AND (wanted IS NULL OR p.partition_id = wanted)
            ORDER BY p.partition_id
            OFFSET 0
        ) p
        CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
        CROSS JOIN LATERAL penstock.drop_below(p.partition_id, s.head_offset, NULL) d
    );
END
$$;

-- penstock.queue_limits(queue_names)
--
-- Returns what a client that packs messages must know of queues, which need not exist yet.
--
-- Parameters: queue_names.
-- Returns: a row per name, in the order given: max_message_bytes and spread.
-- Calls: effective_settings. Tables: queues (read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.queue_limits(queue_names text[])
RETURNS TABLE (queue_name text, max_message_bytes integer, spread integer)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT w.name, (s.settings ->> 'max_message_bytes')::integer, (s.settings ->> 'spread')::integer
    FROM unnest(queue_names) WITH ORDINALITY w (name, position)
    CROSS JOIN LATERAL (
        SELECT coalesce(
            (SELECT q.settings FROM penstock.queues q WHERE q.name = w.name), penstock.effective_settings('{}')
        ) AS settings
    ) s
    ORDER BY w.position
$$;

-- penstock.queue_spread(queue_name)
--
-- Returns the number of partitions over which a queue spreads pushes that name none.
--
-- Parameters: queue_name - it need not exist yet.
-- Returns: the setting; its default for a queue that does not exist.
-- Calls: effective_settings. Tables: queues (read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.queue_spread(queue_name text)
RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (coalesce(
        (SELECT q.settings FROM penstock.queues q WHERE q.name = queue_name), penstock.effective_settings('{}')
    ) ->> 'spread')::integer
$$;

-- penstock.read(queue_name, partition_name, start_offset, stop_offset, start_time, stop_time)
--
-- Reads a range of a partition, a row per message: SELECT * FROM penstock.read('orders', '0', 100, 200).
--
-- Parameters: the range by offsets (they start at 0; the stop is not included), by times, or both.
-- Returns: a row per message, in order.
-- Calls: read_segments, unpack. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.read(
    queue_name     text,
    partition_name text,
    start_offset   bigint      DEFAULT 0,
    stop_offset    bigint      DEFAULT NULL,
    start_time     timestamptz DEFAULT NULL,
    stop_time      timestamptz DEFAULT NULL
)
RETURNS TABLE (id uuid, message_offset bigint, key text, payload bytea, headers jsonb, created_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT m.*
    FROM penstock.read_segments(
        queue_name, partition_name, start_offset, stop_offset, start_time, stop_time, 9223372036854775807
    ) s
    CROSS JOIN LATERAL penstock.unpack(
        s.partition_id, s.base_offset, s.count, s.created_at, s.run_skip, s.run_counts, s.run_times,
        s.body_start, s.body, s.ends, s.key_start, s.keys, s.key_ends, s.header_start, s.headers, s.header_ends
    ) m
$$;

-- penstock.read_segments(queue_name, partition_name, start_offset, stop_offset, start_time, stop_time, max_bytes)
--
-- Reads a range of a partition, a page at a time, still packed: the form that the clients use.
--
-- Parameters: the range by offsets, by times, or both (the narrower applies); null leaves a side open. max_bytes -
-- the approximate size of a page; it has at least one segment.
-- Returns: the rows of segment_slices or joined_slice, each with the partition's id and the offset of the next page
-- (null on the last page). No row: the range is empty.
-- Calls: find_partition, partition_span, offset_at, stop_after_bytes, joined_slice, segment_slices. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.read_segments(
    queue_name     text,
    partition_name text,
    start_offset   bigint      DEFAULT 0,
    stop_offset    bigint      DEFAULT NULL,
    start_time     timestamptz DEFAULT NULL,
    stop_time      timestamptz DEFAULT NULL,
    max_bytes      bigint      DEFAULT 8388608
)
RETURNS TABLE (
    partition_id bigint, next_offset bigint,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    source  bigint := penstock.find_partition(queue_name, partition_name);
    low     bigint;
    high    bigint;
    page_to bigint;
BEGIN
    IF start_offset < 0 OR stop_offset < 0 THEN
        RAISE EXCEPTION 'offset % is negative; offsets start at 0', least(start_offset, stop_offset)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT s.floor_offset, s.head_offset INTO low, high FROM penstock.partition_span(source) s;
    low := greatest(low, start_offset);
    high := least(high, stop_offset);
    IF start_time IS NOT NULL THEN
        low := greatest(low, penstock.offset_at(source, start_time));
    END IF;
    IF stop_time IS NOT NULL THEN
        high := least(high, penstock.offset_at(source, stop_time));
    END IF;
    IF low >= high THEN
        RETURN;
    END IF;
    page_to := penstock.stop_after_bytes(source, low, high, max_bytes);
    IF page_to - low > 1 AND max_bytes <= 67108864 THEN
        RETURN QUERY
        SELECT source, nullif(page_to, high), s.* FROM penstock.joined_slice(source, low, page_to) s;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    RETURN QUERY
    SELECT source, nullif(page_to, high), s.* FROM penstock.segment_slices(source, low, page_to) s;
END
$$;

-- penstock.settings()
--
-- Returns the settings of a queue: name, kind, default, bounds and description. Validation, defaults, error messages
-- and documentation are all derived from it.
--
-- Returns: one row per setting, in the order of the documentation.
-- Calls: nothing. Tables: none.
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.settings()
RETURNS TABLE (
    name          text,
    kind          text,
    default_value jsonb,
    minimum       numeric,
    maximum       numeric,
    choices       text[],
    meaning       text
)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    VALUES
    ('lease_time', 'seconds', '300'::jsonb, 0.001, 604800, NULL::text[],
     'how long a claim is held before it expires'),
    ('max_attempts', 'count', '5', 1, 32767, NULL,
     'deliveries before a message becomes a dead letter'),
    ('backoff_initial', 'seconds', '1', 0, 86400, NULL,
     'wait after the first failure'),
    ('backoff_factor', 'factor', '2', 1, 100, NULL,
     'by how much each further wait grows'),
    ('backoff_max', 'seconds', '300', 0, 604800, NULL,
     'the longest wait between two attempts'),
    ('delay', 'seconds', '0', 0, 31536000, NULL,
     'how old a message must be before it is delivered'),
    ('quiet_period', 'seconds', '0', 0, 31536000, NULL,
     'how long a partition must have been without pushes before it is delivered (alias: window_buffer)'),
    ('durable_acks', 'boolean', 'true', NULL, NULL, '{true,false}',
     'whether an ack waits until it is on disk; false: a crash of the server may deliver again what was acknowledged last'),
    ('retention_time', 'seconds or null', 'null', 0.001, 3155760000, NULL,
     'messages older than this are dropped; null keeps them for ever'),
    ('retention_bytes', 'count or null', 'null', 1, 1125899906842624, NULL,
     'the oldest messages of a partition that holds more than this are dropped; null means no limit'),
    ('retention_rule', 'choice', '"keep_until_consumed"', NULL, NULL, '{keep_until_consumed,drop_and_count}',
     'whether retention waits for the slowest group, or drops and counts what that group missed'),
    ('keep_until_archived', 'choice', '"auto"', NULL, NULL, '{auto,on,off}',
     'whether retention waits for `penstock archive`; auto: once an archive of the queue was begun'),
    ('max_message_bytes', 'count', '1048576', 1, 268435456, NULL,
     'the largest value a message may have'),
    ('compression', 'choice', '"auto"', NULL, NULL, '{auto,on,off}',
     'auto: lz4 where the server has it, else none; on: the best the server has; off: none'),
    ('spread', 'count', '1', 1, 65536, NULL,
     'over how many partitions pushes without a partition are spread'),
    ('dedupe_window', 'seconds', '0', 0, 31536000, NULL,
     'for how long a message''s dedupe_id keeps others with the same id out of its partition; 0 takes no ids')
$$;

-- penstock.maintain(after_partition, max_partitions, min_segments, max_seconds)
--
-- Applies retention and merges small segments in a chunk of partitions; the last call of a pass also trims dedupe ids
-- and the answers to old pushes, and removes abandoned stages. Call it again with the returned position until that is
-- null. Each call is one short transaction and blocks no push. At the end of a pass everything that retention drops
-- is gone, except in a partition in which somebody holds a lock, as a push above READ COMMITTED does: the next pass
-- visits it again. One caller works at a time; another one gets no row.
--
-- A partition that fails does not hold up others. The next pass visits all of it again; until it succeeds,
-- list_failing_timers and `penstock doctor` show it.
--
-- Parameters: after_partition - where the last call ended, 0 to begin; max_partitions - the number of partitions to
-- visit; min_segments - the smallest number of small segments to merge; max_seconds - after this time the call ends
-- with the partition it is at.
-- Returns: what was done, and the position for the next call.
-- Calls: retain_partition, merge_segments, trim_pushes, sweep_stages, put_off, queue_lock_class. Tables: queues,
-- partitions (read), maintenance (insert, update), failing_timers (read, delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.maintain(
    after_partition bigint DEFAULT 0, max_partitions integer DEFAULT 1000, min_segments integer DEFAULT 64,
    max_seconds float8 DEFAULT 1
)
RETURNS TABLE (
    visited integer, dropped_segments bigint, dropped_messages bigint, merged_segments bigint, next_partition bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10ms'
AS $$
DECLARE
    -- A push that was in progress during the last pass may have committed since, with an earlier time.
    since   timestamptz := coalesce(
        (SELECT m.looked_at - interval '10 minutes' FROM penstock.maintenance m), '-infinity'
    );
    until   timestamptz := clock_timestamp() + make_interval(secs => max_seconds);
    failing bigint[] := ARRAY(SELECT f.partition_id FROM penstock.failing_timers f WHERE f.kind = 'maintenance');
    problem text;
    state   text;
    place   record;
    dropped record;
    before  bigint[];
    merged  integer;
    more    boolean := false;
    ended   boolean := true;
BEGIN
    IF (after_partition >= 0 AND max_partitions > 0 AND max_seconds >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'after_partition is %, max_partitions is %, max_seconds is %: none may be null, max_partitions not below 1',
            after_partition, max_partitions, max_seconds
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT pg_try_advisory_xact_lock(penstock.queue_lock_class(), 0) THEN
        RETURN;
    END IF;
    IF after_partition = 0 THEN
        INSERT INTO penstock.maintenance (began_at) VALUES (clock_timestamp())
        ON CONFLICT (one) DO UPDATE SET began_at = excluded.began_at;
        BEGIN
            PERFORM penstock.sweep_stages();
            DELETE FROM penstock.failing_timers f
            WHERE f.kind = 'maintenance'
              AND NOT EXISTS (SELECT 1 FROM penstock.partitions p WHERE p.partition_id = f.partition_id);
        EXCEPTION
            WHEN lock_not_available THEN
                NULL; -- the next pass comes here again
            WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
                PERFORM penstock.put_off('maintenance', 0, 0, 0, state, problem);
        END;
    END IF;
    visited := 0;
    dropped_segments := 0;
    dropped_messages := 0;
    merged_segments := 0;
    FOR place IN
        SELECT p.partition_id, q.settings
        FROM penstock.partitions p
        JOIN penstock.queues q ON q.queue_id = p.queue_id
        WHERE p.partition_id > after_partition
        ORDER BY p.partition_id
        LIMIT max_partitions
    LOOP
        visited := visited + 1;
        next_partition := place.partition_id;
        before := ARRAY[dropped_segments, dropped_messages, merged_segments];
        BEGIN
            IF place.settings ->> 'retention_time' IS NOT NULL OR place.settings ->> 'retention_bytes' IS NOT NULL THEN
                SELECT * INTO dropped FROM penstock.retain_partition(place.partition_id, place.settings, until);
                dropped_segments := dropped_segments + dropped.dropped_segments;
                dropped_messages := dropped_messages + dropped.dropped_messages;
                more := NOT dropped.complete;
            END IF;
            WHILE NOT more LOOP
                merged := penstock.merge_segments(
                    place.partition_id, min_segments,
                    CASE WHEN place.partition_id = ANY (failing) THEN '-infinity' ELSE since END
                );
                merged_segments := merged_segments + merged;
                -- Transactions are short: the next one continues with this partition.
                more := merged > 0 AND merged_segments >= 20000;
                EXIT WHEN merged = 0;
            END LOOP;
            IF place.partition_id = ANY (failing) AND NOT more THEN
                DELETE FROM penstock.failing_timers f
                WHERE f.kind = 'maintenance' AND f.partition_id = place.partition_id;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
            -- What this partition had to count was undone with it.
            dropped_segments := before[1];
            dropped_messages := before[2];
            merged_segments := before[3];
            more := false;
            IF state <> '55P03' THEN -- lock_not_available
                PERFORM penstock.put_off('maintenance', 0, place.partition_id, 0, state, problem);
            ELSIF place.partition_id = ANY (failing) IS NOT TRUE THEN
                -- The next pass must look as far back as this one did.
                UPDATE penstock.maintenance SET began_at = looked_at;
            END IF;
        END;
        IF more THEN
            next_partition := place.partition_id - 1;
        END IF;
        ended := NOT more AND clock_timestamp() < until;
        EXIT WHEN NOT ended;
    END LOOP;
    IF visited < max_partitions AND ended THEN
        -- The pass ends with what is not of one partition; while there may be more of that, it does not end.
        next_partition := CASE
            WHEN penstock.trim_pushes(10000) >= 10000 THEN coalesce(next_partition, after_partition)
        END;
        IF next_partition IS NULL THEN
            UPDATE penstock.maintenance SET looked_at = began_at;
        END IF;
    END IF;
    RETURN NEXT;
END
$$;

-- penstock.resync(after_partition, max_partitions)
--
-- Repairs the ready list after a restore, or a logical replication that did not run penstock's functions: every
-- partition with work gets an entry, entries that no journal row refers to are deleted, and entries at a priority
-- that no pop looks at are moved to their partition's. It is harmless at any time, also under load. Call it again
-- with the returned position until that is null.
--
-- Parameters: after_partition - where the last call ended, 0 to begin; max_partitions - the number of partitions to
-- visit.
-- Returns: what was repaired, and the position for the next call.
-- Calls: partition_span, append_state, wake_partitions, require_read_committed, newest_state. Tables:
-- consumer_groups, partitions (lock), queues (update), journal, scheduled (read), ready (update, delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.resync(after_partition bigint DEFAULT 0, max_partitions integer DEFAULT 1000)
RETURNS TABLE (visited bigint, repaired bigint, busy bigint, next_partition bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- Statistics may be older than a restore; whatever they say, each partition is looked up by its keys.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    place  record;
    reader record;
    newest penstock.journal;
    span   record;
    given  bigint;
    moved  bigint;
BEGIN
    IF (max_partitions > 0 AND after_partition >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'max_partitions is % and must be above 0; after_partition is % and must be 0 or above',
            max_partitions, after_partition
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_read_committed('resync');
    visited := 0;
    repaired := 0;
    busy := 0;
    -- Against delete_group, which would not see what is appended here.
    PERFORM 1 FROM penstock.consumer_groups g ORDER BY g.group_id FOR KEY SHARE;
    IF after_partition = 0 THEN
        -- A restore can leave the sequences behind what they have given. Otherwise they are left alone: others use
        -- them.
        SELECT greatest(
            (SELECT max(y.seq) FROM penstock.ready y), (SELECT max(j.ready_seq) FROM penstock.journal j)
        ) INTO given;
        IF given > nextval('penstock.ready_seq') THEN
            PERFORM setval('penstock.ready_seq', given);
        END IF;
        given := (SELECT max(s.scheduled_id) FROM penstock.scheduled s);
        IF given > nextval('penstock.scheduled_seq') THEN
            PERFORM setval('penstock.scheduled_seq', given);
        END IF;
        -- Pops look at the priorities that the queue has, and nowhere else.
        UPDATE penstock.queues q
        SET priorities = ARRAY(
            SELECT l.level FROM unnest(q.priorities) l (level)
            UNION
            SELECT p.priority FROM penstock.partitions p WHERE p.queue_id = q.queue_id
            ORDER BY 1 DESC
        )
        WHERE EXISTS (
            SELECT 1 FROM penstock.partitions p WHERE p.queue_id = q.queue_id AND p.priority <> ALL (q.priorities)
        );
        UPDATE penstock.ready y
        SET priority = (SELECT p.priority FROM penstock.partitions p WHERE p.partition_id = y.partition_id)
        WHERE y.ctid = ANY (ARRAY(
            SELECT y.ctid FROM penstock.ready y
            WHERE y.priority <> ALL ((
                SELECT q.priorities FROM penstock.queues q
                JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
                WHERE g.group_id = y.group_id
            )::smallint[]) AND EXISTS (SELECT 1 FROM penstock.partitions p WHERE p.partition_id = y.partition_id)
            FOR UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS moved = ROW_COUNT;
        DELETE FROM penstock.ready y
        WHERE y.ctid = ANY (ARRAY(
            SELECT y.ctid FROM penstock.ready y
            WHERE y.lo IS NULL AND y.seq IS DISTINCT FROM (
                SELECT j.ready_seq FROM penstock.newest_state(y.group_id, y.partition_id) j
            )
            FOR UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS repaired = ROW_COUNT;
        repaired := repaired + moved;
    END IF;
    FOR place IN
        SELECT
            p.partition_id, p.queue_id, p.lane_of,
            (SELECT q.priorities FROM penstock.queues q WHERE q.queue_id = p.queue_id) AS priorities
        FROM penstock.partitions p
        WHERE p.partition_id > after_partition
        ORDER BY p.partition_id
        LIMIT max_partitions
    LOOP
        visited := visited + 1;
        next_partition := place.partition_id;
        PERFORM 1 FROM penstock.partitions p
        WHERE p.partition_id = place.partition_id
        FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            busy := busy + 1;
            CONTINUE;
        END IF;
        SELECT s.* INTO span FROM penstock.partition_span(place.partition_id) s;
        FOR reader IN
            SELECT g.group_id, g.subscription, g.enrolled_to FROM penstock.consumer_groups g
            WHERE g.queue_id = place.queue_id AND (place.lane_of IS NULL OR place.lane_of = g.group_id)
        LOOP
            SELECT j.* INTO newest FROM penstock.newest_state(reader.group_id, place.partition_id) j;
            IF newest.version IS NULL THEN
                IF span.head_offset > span.floor_offset AND reader.subscription <> 'new' AND reader.enrolled_to IS NULL THEN
                    PERFORM penstock.wake_partitions(ARRAY[place.partition_id], ARRAY[span.head_offset], reader.group_id);
                    repaired := repaired + 1;
                END IF;
            -- Ready without an entry: nobody else can append the next row, so we may; the lock makes us the only one.
            ELSIF newest.state = 'r' AND NOT EXISTS (
                -- Level by level: without one, PostgreSQL up to 17 reads the group's whole ready list.
                SELECT 1
                FROM unnest(place.priorities) l (level)
                CROSS JOIN LATERAL (
                    SELECT 1 FROM penstock.ready y
                    WHERE y.group_id = newest.group_id AND y.priority = l.level AND y.seq = newest.ready_seq
                      AND y.partition_id = newest.partition_id
                    LIMIT 1
                ) y
            ) THEN
                PERFORM 1 FROM penstock.journal j
                WHERE j.group_id = newest.group_id AND j.partition_id = newest.partition_id
                  AND j.version > newest.version;
                IF NOT FOUND THEN
                    PERFORM penstock.append_state(
                        newest, 'r', newest.committed, newest.attempt, newest.narrow_attempt, newest.narrow_to
                    );
                    repaired := repaired + 1;
                END IF;
            ELSIF newest.state = 'i' AND span.head_offset > greatest(newest.committed, span.floor_offset) THEN
                PERFORM penstock.append_state(newest, 'r', newest.committed);
                repaired := repaired + 1;
            END IF;
        END LOOP;
    END LOOP;
    IF visited < max_partitions THEN
        next_partition := NULL;
    END IF;
    RETURN NEXT;
END
$$;

-- penstock.verify()
--
-- Checks that states and log agree. Every count must be 0 at any time, also under load: each check is one statement
-- with one snapshot.
--
-- Returns: a row per check: its name, the number of violations, and its meaning.
-- Calls: partition_span, offset_limit, offset_at, int32_at. Tables: segments, partitions, journal, ready, claims,
-- consumer_groups, queues, trimmed, partition_lookup, late_wakeups, archived, archive_files, scheduled, dedupe_ids,
-- beginnings, failing_timers (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.verify()
RETURNS TABLE (check_name text, violations bigint, meaning text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
-- Statistics older than a table's growth make it look cheap to go through one table for each row of another.
SET enable_nestloop = off
AS $$
    WITH runs AS (
        SELECT
            s.partition_id, s.base_offset, s.count, s.created_at, s.ends, s.key_ends, s.header_ends,
            octet_length(coalesce(s.body, s.body_compressed)) AS body_bytes,
            octet_length(s.keys) AS key_bytes, octet_length(s.headers) AS header_bytes,
            lag(s.base_offset) OVER later AS last_base,
            lead(s.base_offset) OVER later AS next_base, lead(s.created_at) OVER later AS next_time
        FROM penstock.segments s
        WHERE s.partition_id > 0
        WINDOW later AS (PARTITION BY s.partition_id ORDER BY s.base_offset)
    ), spans AS (
        SELECT p.partition_id, p.queue_id, p.lane_of, s.floor_offset, s.head_offset, s.newest_at
        FROM penstock.partitions p
        CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
    ), newest AS (
        SELECT DISTINCT ON (j.group_id, j.partition_id) j.*
        FROM penstock.journal j
        ORDER BY j.group_id, j.partition_id, j.version DESC
    ), untrimmed AS (
        -- The sweep trims eight rows behind the timer of a claim. Rows with a timer of their own go when it is due.
        SELECT j.group_id, j.partition_id, count(*) AS rows
        FROM (
            SELECT
                j.group_id, j.partition_id, j.version, j.due_at, max(j.version) OVER (all_of_it) AS newest_version,
                min(j.version) FILTER (WHERE j.state = 'c') OVER (
                    all_of_it ORDER BY j.version ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
                ) AS next_claim
            FROM penstock.journal j
            WINDOW all_of_it AS (PARTITION BY j.group_id, j.partition_id)
        ) j
        WHERE j.due_at IS NULL AND j.version < j.newest_version AND j.next_claim - j.version <= 8 IS NOT TRUE
        GROUP BY j.group_id, j.partition_id
    ), used_up AS (
        -- What is offered or held after as many attempts as its group allows. Where nobody knows which message of
        -- several failed, each comes once more alone, so a limit of one is two.
        SELECT w.partition_id, w.message_offset, greatest(g.limited_at, q.limited_at) AS limited_at
        FROM (
            SELECT n.group_id, n.partition_id, n.committed AS message_offset, n.attempt, n.state = 'c' AS held
            FROM newest n
            WHERE n.state IN ('r', 't', 'c')
            UNION ALL
            SELECT y.group_id, y.partition_id, y.lo, y.attempt, false FROM penstock.ready y WHERE y.lo IS NOT NULL
            UNION ALL
            SELECT c.group_id, c.partition_id, c.lo, c.attempt, c.lease_id IS NOT NULL FROM penstock.claims c
        ) w
        JOIN penstock.consumer_groups g ON g.group_id = w.group_id
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE w.attempt - w.held::integer
            >= greatest(coalesce(g.config ->> 'max_attempts', q.settings ->> 'max_attempts')::integer, 2)
    )
    SELECT 'segments_of_wrong_shape', count(*), 'a segment whose columns disagree about its messages' FROM runs r
    WHERE r.base_offset < 0 OR r.count < 1 OR r.base_offset + r.count > penstock.offset_limit()
       OR octet_length(r.ends) NOT IN (4 * r.count, 5 * r.count)
       OR 4 * r.count <> ANY (ARRAY[octet_length(r.key_ends), octet_length(r.header_ends)])
       OR EXISTS (
           -- Of each column its length, the first end and the last one: to go through all of them would take as long as
           -- to read the whole log.
           SELECT 1
           FROM (VALUES (r.ends, r.body_bytes), (r.key_ends, r.key_bytes), (r.header_ends, r.header_bytes)) c (ends, bytes)
           WHERE (c.ends IS NULL) <> (c.bytes IS NULL) OR CASE WHEN octet_length(c.ends) >= 4 * r.count THEN
               penstock.int32_at(substring(c.ends FROM 4 * r.count - 3 FOR 4), 0) <> c.bytes
               OR penstock.int32_at(substring(c.ends FOR 4), 0) NOT BETWEEN 0 AND c.bytes
           END
       )
    UNION ALL
    SELECT 'gaps', count(*), 'offsets missing between two segments, or before the first one' FROM runs r
    WHERE r.next_base > r.base_offset + r.count
       OR r.last_base IS NULL AND r.base_offset > 0
       AND NOT EXISTS (SELECT 1 FROM penstock.trimmed t WHERE t.partition_id = r.partition_id)
    UNION ALL
    SELECT 'overlaps', count(*), 'offsets in two segments' FROM runs r WHERE r.next_base < r.base_offset + r.count
    UNION ALL
    SELECT 'times_that_go_back', count(*), 'a segment that is older than the one before it' FROM runs r
    WHERE r.next_time < r.created_at
    UNION ALL
    SELECT 'stubs_inside', count(*), 'a stub with messages below it' FROM runs r
    JOIN spans s ON s.partition_id = r.partition_id
    WHERE r.ends IS NULL AND r.base_offset >= s.floor_offset
    UNION ALL
    SELECT 'orphan_segments', count(*), 'segments of no partition' FROM runs r
    WHERE NOT EXISTS (SELECT 1 FROM penstock.partitions p WHERE p.partition_id = r.partition_id)
    UNION ALL
    SELECT 'orphan_partitions', count(*), 'partitions of no queue, or lanes of no group' FROM penstock.partitions p
    WHERE NOT EXISTS (SELECT 1 FROM penstock.queues q WHERE q.queue_id = p.queue_id)
       OR p.lane_of IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = p.lane_of)
    UNION ALL
    SELECT 'newer_messages_count', count(*), 'messages newer than partition_lookup says' FROM runs r
    JOIN spans s ON s.partition_id = r.partition_id
    WHERE r.base_offset + r.count > s.head_offset
    UNION ALL
    SELECT 'partitions_with_stale_lookup', count(*), 'partitions whose newest message partition_lookup does not have'
    FROM spans s
    LEFT JOIN penstock.partition_lookup l ON l.partition_id = s.partition_id
    WHERE s.head_offset > s.floor_offset AND l.last_message_created_at IS DISTINCT FROM s.newest_at
    UNION ALL
    SELECT 'journal_rows_out_of_order', count(*), 'a journal row that is impossible by itself' FROM penstock.journal j
    WHERE j.committed < 0 OR j.committed > j.claimed_to OR j.state = 'c' AND j.due_at = 'infinity'
       OR (j.state = 'c') <> (j.lease_id IS NOT NULL)
       OR (j.state = 'r') <> (j.ready_seq IS NOT NULL) OR (j.state IN ('c', 't', 'p')) <> (j.due_at IS NOT NULL)
    UNION ALL
    SELECT 'orphan_journals', count(*), 'journals of no group or no partition' FROM newest n
    WHERE NOT EXISTS (SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = n.group_id)
       OR NOT EXISTS (SELECT 1 FROM penstock.partitions p WHERE p.partition_id = n.partition_id)
    UNION ALL
    SELECT 'positions_out_of_order', count(*), 'not committed <= claimed_to <= head' FROM newest n
    JOIN spans s ON s.partition_id = n.partition_id
    WHERE NOT (n.committed <= n.claimed_to AND n.claimed_to <= s.head_offset)
    UNION ALL
    SELECT 'work_not_ready', count(*), 'messages to read in a partition that is idle for its group'
    FROM newest n
    JOIN spans s ON s.partition_id = n.partition_id
    WHERE n.state = 'i' AND s.head_offset > greatest(n.committed, s.floor_offset)
      AND NOT EXISTS (SELECT 1 FROM penstock.late_wakeups w WHERE w.partition_id = s.partition_id)
    UNION ALL
    SELECT 'work_not_taken_up', count(*), 'messages to read in a partition that its group does not know' FROM spans s
    JOIN penstock.consumer_groups g ON g.queue_id = s.queue_id AND (s.lane_of IS NULL OR s.lane_of = g.group_id)
    WHERE g.enrolled_to IS NULL AND s.head_offset > s.floor_offset AND CASE g.subscription
          WHEN 'all' THEN true
          WHEN 'time' THEN s.newest_at >= g.from_time
          -- By both clocks, that of the wall and that of transactions: the one may go back, the other has merges.
          ELSE s.newest_at > g.created_at AND age(g.xmin) > (
              SELECT age(e.xmin) FROM penstock.segments e
              WHERE e.partition_id = s.partition_id
              ORDER BY e.base_offset DESC
              LIMIT 1
          )
      END
      AND NOT EXISTS (SELECT 1 FROM newest n WHERE n.group_id = g.group_id AND n.partition_id = s.partition_id)
      AND NOT EXISTS (SELECT 1 FROM penstock.late_wakeups w WHERE w.partition_id = s.partition_id)
    UNION ALL
    SELECT 'ready_without_entry', count(*), 'ready, and not in the ready list' FROM newest n
    WHERE n.state = 'r' AND NOT EXISTS (
        SELECT 1 FROM penstock.ready y WHERE y.group_id = n.group_id AND y.seq = n.ready_seq
    )
    UNION ALL
    SELECT 'places_of_nobody', count(*), 'a ready list entry that no journal knows' FROM penstock.ready y
    WHERE y.lo IS NULL AND NOT EXISTS (
        SELECT 1 FROM newest n
        WHERE n.group_id = y.group_id AND n.partition_id = y.partition_id AND n.state = 'r' AND n.ready_seq = y.seq
    )
    UNION ALL
    SELECT 'places_at_unknown_priority', count(*), 'a ready list entry at a priority that its queue does not know'
    FROM penstock.ready y
    JOIN penstock.consumer_groups g ON g.group_id = y.group_id
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    WHERE y.priority <> ALL (q.priorities)
    UNION ALL
    SELECT 'ranges_out_of_order', count(*), 'shared ranges that are empty, overlap or lie past what was handed out'
    FROM (
        SELECT w.*, lead(w.lo) OVER (PARTITION BY w.group_id, w.partition_id ORDER BY w.lo) AS next_lo
        FROM (
            SELECT c.group_id, c.partition_id, c.lo, c.hi FROM penstock.claims c
            UNION ALL
            SELECT y.group_id, y.partition_id, y.lo, y.hi FROM penstock.ready y WHERE y.lo IS NOT NULL
        ) w
    ) w
    LEFT JOIN newest n ON n.group_id = w.group_id AND n.partition_id = w.partition_id
    WHERE w.lo >= w.hi OR w.next_lo < w.hi OR w.hi > coalesce(n.claimed_to, 0)
    UNION ALL
    SELECT 'ranges_of_other_groups', count(*), 'shared ranges of a group that is not shared'
    FROM (
        SELECT c.group_id FROM penstock.claims c
        UNION ALL
        SELECT y.group_id FROM penstock.ready y WHERE y.lo IS NOT NULL
    ) w
    JOIN penstock.consumer_groups g ON g.group_id = w.group_id
    WHERE g.mode <> 'shared'
    UNION ALL
    SELECT 'journals_not_trimmed', count(*), 'more than 64 journal rows that no timer leads the sweep to' FROM untrimmed u
    WHERE u.rows > 64
    UNION ALL
    SELECT 'attempts_above_the_limit', count(*), 'delivered again after all attempts that the group allows'
    FROM used_up u
    CROSS JOIN LATERAL (
        SELECT s.created_at, s.run_counts FROM penstock.segments s
        WHERE s.partition_id = u.partition_id AND s.base_offset <= u.message_offset
        ORDER BY s.base_offset DESC
        LIMIT 1
    ) s
    -- Pushed since the limit is what it is: it may have been another one before.
    WHERE s.run_counts IS NULL AND s.created_at > u.limited_at
    UNION ALL
    SELECT 'archives_of_wrong_shape', count(*), 'archived ranges that overlap, or of no partition, file or message'
    FROM (
        SELECT a.*, lead(a.start_offset) OVER (PARTITION BY a.partition_id ORDER BY a.start_offset) AS next_start
        FROM penstock.archived a
    ) a
    LEFT JOIN spans s ON s.partition_id = a.partition_id
    LEFT JOIN penstock.archive_files f ON f.file_id = a.file_id
    WHERE s.partition_id IS NULL OR f.file_id IS NULL OR a.stop_offset > s.head_offset OR a.next_start < a.stop_offset
    UNION ALL
    SELECT 'orphan_schedules', count(*), 'scheduled messages of no partition' FROM penstock.scheduled s
    WHERE NOT EXISTS (
        SELECT 1 FROM penstock.partitions p WHERE p.partition_id = s.partition_id AND p.queue_id = s.queue_id
    )
    UNION ALL
    SELECT 'orphan_dedupe_ids', count(*), 'dedupe ids of no partition, of no message, or of none that is scheduled'
    FROM penstock.dedupe_ids k
    LEFT JOIN spans s ON s.partition_id = k.partition_id AND s.queue_id = k.queue_id
    WHERE s.partition_id IS NULL OR k.message_offset >= s.head_offset
       OR (k.scheduled_id IS NULL) <> (k.message_offset IS NOT NULL)
       OR k.scheduled_id IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM penstock.scheduled w WHERE w.scheduled_id = k.scheduled_id)
    UNION ALL
    SELECT 'messages_passed_over', count(*), 'a group that began after a message that was for it' FROM penstock.beginnings b
    JOIN penstock.consumer_groups g ON g.group_id = b.group_id
    WHERE b.base_offset > penstock.offset_at(
        b.partition_id, CASE WHEN g.subscription = 'new' THEN g.created_at ELSE g.from_time END
    )
    UNION ALL
    SELECT 'timers_put_off', count(*), 'timers that failed: list_failing_timers says why' FROM penstock.failing_timers f
$$;

-- penstock.cancel(scheduled_ids)
--
-- Cancels scheduled messages: they will never be in the log. Their dedupe ids are deleted, so that the same messages
-- can be pushed again. Waits for a sweep that is publishing one of them.
--
-- Parameters: scheduled_ids - ids that a push returned or list_scheduled shows.
-- Returns: the ids that were cancelled. The others were published or cancelled before.
-- Calls: use_lock_timeout. Tables: scheduled, dedupe_ids (delete), partitions (lock).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.cancel(scheduled_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    cancelled bigint[];
BEGIN
    PERFORM penstock.use_lock_timeout();
    -- Dedupe ids belong to whoever holds their partition's lock, and partitions come first, as in a push.
    PERFORM 1 FROM penstock.partitions p
    WHERE p.partition_id = ANY (ARRAY(
        SELECT s.partition_id
        FROM unnest(cancel.scheduled_ids) w (scheduled_id)
        -- A range, in order: with an equality the planner takes any index that has the column, while they are small.
        CROSS JOIN LATERAL (
            SELECT n.partition_id, n.dedupe_ids FROM penstock.scheduled n
            WHERE n.scheduled_id >= w.scheduled_id AND n.scheduled_id <= w.scheduled_id
            ORDER BY n.scheduled_id
            LIMIT 1
        ) s
        WHERE s.dedupe_ids IS NOT NULL
    ))
    ORDER BY p.partition_id
    FOR NO KEY UPDATE;
    WITH wanted AS MATERIALIZED (
        SELECT s.place
        FROM unnest(ARRAY(SELECT DISTINCT i FROM unnest(cancel.scheduled_ids) i ORDER BY i)) w (scheduled_id)
        CROSS JOIN LATERAL (
            SELECT n.ctid AS place FROM penstock.scheduled n
            WHERE n.scheduled_id >= w.scheduled_id AND n.scheduled_id <= w.scheduled_id
            ORDER BY n.scheduled_id
            LIMIT 1
            FOR UPDATE
        ) s
    ), gone AS (
        DELETE FROM penstock.scheduled s
        WHERE s.ctid = ANY (ARRAY(SELECT w.place FROM wanted w))
        RETURNING s.scheduled_id, s.partition_id, s.dedupe_ids
    ), forgotten AS (
        DELETE FROM penstock.dedupe_ids k
        USING gone g
        WHERE k.partition_id = g.partition_id AND k.dedupe_id = ANY (g.dedupe_ids) AND k.scheduled_id = g.scheduled_id
    )
    SELECT array_agg(g.scheduled_id ORDER BY g.scheduled_id) INTO cancelled FROM gone g;
    RETURN coalesce(cancelled, '{}');
END
$$;

-- penstock.list_scheduled(queue_name, partition_name, after_due, after_id, max_rows)
--
-- Lists scheduled messages, the first to be due first, a page at a time. A row is what one push gave to one
-- partition, or a part of it if that was large.
--
-- Parameters: queue_name and partition_name - null for all; after_due and after_id - the last row of the page before;
-- max_rows - the largest number of rows.
-- Returns: a row per scheduled segment; preview is the beginning of its first message, null if the value is null.
-- Calls: find_queue, find_partition, end_at, null_flags. Tables: scheduled, queues, partitions (read).
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.list_scheduled(
    queue_name     text        DEFAULT NULL,
    partition_name text        DEFAULT NULL,
    after_due      timestamptz DEFAULT '-infinity',
    after_id       bigint      DEFAULT 0,
    max_rows       integer     DEFAULT 100
)
RETURNS TABLE (
    scheduled_id bigint, queue text, partition text, due_at timestamptz, created_at timestamptz,
    message_count integer, bytes integer, preview bytea
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- A generic plan would go through all queues for one.
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    -- Looked up before and not within the query, where an empty table would keep it from being asked at all.
    wanted_queue integer := CASE WHEN queue_name IS NOT NULL THEN penstock.find_queue(queue_name) END;
    wanted       bigint := CASE
        WHEN partition_name IS NOT NULL THEN penstock.find_partition(queue_name, partition_name)
    END;
BEGIN
    RETURN QUERY
    SELECT
        s.scheduled_id, q.name, p.name, s.due_at, s.created_at, s.count, s.bytes,
        CASE WHEN get_byte(penstock.null_flags(s.count, s.ends), 0) = 1 THEN NULL
             ELSE substring(s.body FROM 1 FOR least(penstock.end_at(s.ends, 0, s.bytes), 100)) END
    FROM (
        SELECT * FROM penstock.scheduled s
        WHERE (wanted_queue IS NULL OR s.queue_id = wanted_queue)
          AND (wanted IS NULL OR s.partition_id = wanted)
          AND (s.due_at, s.scheduled_id) > (after_due, after_id)
        ORDER BY s.due_at, s.scheduled_id
        LIMIT max_rows
    ) s
    JOIN penstock.queues q ON q.queue_id = s.queue_id
    JOIN penstock.partitions p ON p.partition_id = s.partition_id
    ORDER BY s.due_at, s.scheduled_id;
END
$$;

-- penstock.push(queue_name, messages, partition_name, keys, headers, dedupe_ids, delay, at)
--
-- Pushes messages from psql or any language: takes a plain array, which the server packs. All messages commit
-- together with the caller's transaction. For locks and retryable errors see push_segments, for delays and dedupe ids
-- see push_with_options.
--
-- Parameters: messages - the values, which may be null; partition_name - null: a message with a key goes to
-- partition_for_key of the key, one with a dedupe id to that of the id, and the others, together, to one of the
-- queue's `spread` partitions; keys, headers and dedupe_ids - one per message, or null. Headers are JSON objects of
-- strings; delay - seconds until the messages are due, or at - the time, or neither.
-- Returns: one row per stored segment: its partition and the time of its messages, or the id under which it is
-- scheduled and until when; the positions of duplicates among the messages, from 1, and the ids of the originals.
-- Calls: require_messages, pack_messages, push_segments, push_with_options, message_id. Tables: queues (read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.push(
    queue_name     text,
    messages       bytea[],
    partition_name text        DEFAULT NULL,
    keys           text[]      DEFAULT NULL,
    headers        jsonb[]     DEFAULT NULL,
    dedupe_ids     text[]      DEFAULT NULL,
    delay          float8      DEFAULT NULL,
    at             timestamptz DEFAULT NULL
)
RETURNS TABLE (
    pushed_to text, partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz,
    scheduled_id bigint, due_at timestamptz, duplicate_positions integer[], duplicate_ids uuid[]
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    spread  integer := coalesce(
        (SELECT (q.settings ->> 'spread')::integer FROM penstock.queues q WHERE q.name = queue_name), 1
    );
    packed  record;
    places  integer;
BEGIN
    PERFORM penstock.require_messages(messages, keys, headers, dedupe_ids);
    SELECT
        array_agg(p.place ORDER BY p.nth) AS places, array_agg(p.count ORDER BY p.nth) AS counts,
        array_agg(p.body ORDER BY p.nth) AS bodies, array_agg(p.ends ORDER BY p.nth) AS ends,
        array_agg(p.keys ORDER BY p.nth) AS keys, array_agg(p.key_ends ORDER BY p.nth) AS key_ends,
        array_agg(p.headers ORDER BY p.nth) AS headers, array_agg(p.header_ends ORDER BY p.nth) AS header_ends,
        -- One segment's positions after the other's, as its messages are.
        (SELECT array_agg(o.position ORDER BY o.nth) FROM unnest(string_to_array(
            string_agg(array_to_string(p.positions, ','), ',' ORDER BY p.nth), ','
        )::integer[]) WITH ORDINALITY o (position, nth)) AS positions
    INTO packed
    FROM penstock.pack_messages(messages, push.partition_name, push.keys, push.headers, push.dedupe_ids, spread)
        WITH ORDINALITY p (place, count, body, ends, keys, key_ends, headers, header_ends, positions, nth);
    places := cardinality(packed.places);
    IF dedupe_ids IS NULL AND delay IS NULL AND at IS NULL THEN
        RETURN QUERY
        SELECT
            packed.places[s.nth], s.partition_id, s.first_offset, s.message_count, s.created_at,
            NULL::bigint, NULL::timestamptz, NULL::integer[], NULL::uuid[]
        FROM penstock.push_segments(
            array_fill(queue_name, ARRAY[places]), packed.places, packed.counts, packed.bodies, packed.ends,
            packed.keys, packed.key_ends, packed.headers, packed.header_ends
        ) WITH ORDINALITY s (partition_id, first_offset, message_count, created_at, nth);
        RETURN;
    END IF;
    RETURN QUERY
    SELECT
        packed.places[s.nth], s.partition_id, s.first_offset, s.message_count, s.created_at, s.scheduled_id, s.due_at,
        d.positions, d.ids
    FROM penstock.push_with_options(
        array_fill(queue_name, ARRAY[places]), packed.places, packed.counts, packed.bodies, packed.ends,
        packed.keys, packed.key_ends, packed.headers, packed.header_ends,
        array_fill(delay, ARRAY[places]), array_fill(at, ARRAY[places]),
        CASE WHEN dedupe_ids IS NOT NULL THEN ARRAY(
            SELECT push.dedupe_ids[o.position]
            FROM unnest(packed.positions) WITH ORDINALITY o (position, nth) ORDER BY o.nth
        ) END
    ) WITH ORDINALITY s (
        partition_id, first_offset, message_count, created_at, scheduled_id, due_at,
        duplicate_positions, duplicate_offsets, duplicate_times, duplicate_scheduled_ids, nth
    )
    LEFT JOIN LATERAL (
        SELECT
            array_agg(packed.positions[c.before + u.position + 1] ORDER BY u.nth) AS positions,
            array_agg(penstock.message_id(s.partition_id, u.message_offset, u.created_at) ORDER BY u.nth) AS ids
        FROM unnest(s.duplicate_positions, s.duplicate_offsets, s.duplicate_times) WITH ORDINALITY
            u (position, message_offset, created_at, nth)
        CROSS JOIN (SELECT coalesce(sum(c), 0)::integer AS before FROM unnest(packed.counts[:s.nth - 1]) c) c
    ) d ON true
    ORDER BY s.nth;
END
$$;

-- penstock.push_json(queue_name, message, partition_name, key, headers)
--
-- Pushes one JSON message: SELECT penstock.push_json('orders', '{"id": 7}').
--
-- Parameters: as in push, for one message. SQL's null is a null value; JSON's null is the text null.
-- Returns: the message's id.
-- Calls: push, message_id. Tables: none.
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.push_json(
    queue_name     text,
    message        jsonb,
    partition_name text  DEFAULT NULL,
    key            text  DEFAULT NULL,
    headers        jsonb DEFAULT NULL
)
RETURNS uuid
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT penstock.message_id(p.partition_id, p.first_offset, p.created_at)
    FROM penstock.push(
        queue_name, ARRAY[convert_to(message::text, 'UTF8')], partition_name, ARRAY[key], ARRAY[headers]
    ) p
$$;

-- penstock.push_segment(queue_name, partition_name, count, body, ends, keys, key_ends, headers, header_ends, producer,
--                       sequence)
--
-- Appends one packed segment to one partition: push_segments for the commonest push, at a fraction of its cost.
--
-- Parameters: one entry of those of push_segments; producer and sequence as there.
-- Returns: where the segment went and the time its messages got.
-- Calls: ensure_partitions, require_packed, compresses, pushed_before, offset_limit, refuse_full, wake_partitions,
-- push_segments, queue_lock_class, int32_at, packed_bytes, newest_segment. Tables: queues, consumer_groups, journal (read),
-- partitions (lock), segments, producers (insert).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.push_segment(
    queue_name     text,
    partition_name text,
    count          integer,
    body           bytea,
    ends           bytea,
    keys           bytea DEFAULT NULL,
    key_ends       bytea DEFAULT NULL,
    headers        bytea DEFAULT NULL,
    header_ends    bytea DEFAULT NULL,
    producer       uuid DEFAULT NULL,
    sequence       bigint DEFAULT NULL
)
RETURNS TABLE (partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    target record;
    asleep boolean;
BEGIN
    -- A look at a table here costs as much as the insert of a row, and each expression a tenth: hence so few of them.
    -- What is out of the ordinary goes to push_segments.
    IF current_setting('transaction_isolation') <> 'read committed'
        OR current_setting('penstock.lock_timeout', true) <> ''
    THEN
        RETURN QUERY SELECT * FROM penstock.push_segments(
            ARRAY[queue_name], ARRAY[partition_name], ARRAY[count], ARRAY[body], ARRAY[ends],
            ARRAY[keys], ARRAY[key_ends], ARRAY[headers], ARRAY[header_ends], producer, sequence
        );
        RETURN;
    END IF;
    LOOP
        SELECT
            p.partition_id, q.queue_id, penstock.compresses(q.settings ->> 'compression') AS compressed,
            -- Keeps a group from coming into being until we have committed: it would not know of these messages.
            pg_try_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id) AS joined,
            -- Most segments are plainly right, and need no call to be told so.
            num_nonnulls(keys, key_ends, headers, header_ends) = 0
            AND count BETWEEN 1 AND 1000000
            AND octet_length(ends) = 4 * count
            AND penstock.int32_at(ends, count - 1) = octet_length(body)
            AND octet_length(body) <= (q.settings ->> 'max_message_bytes')::integer AS plain
        INTO target
        FROM penstock.queues q
        -- The lock keeps this a query of its own. A join, planned for small tables, looks for the name in all queues.
        CROSS JOIN LATERAL (
            SELECT n.partition_id FROM penstock.partitions n
            WHERE n.queue_id = q.queue_id AND n.name = partition_name
            FOR NO KEY UPDATE
        ) p
        WHERE q.name = queue_name;
        EXIT WHEN FOUND;
        PERFORM penstock.ensure_partitions(ARRAY[queue_name], ARRAY[partition_name]);
    END LOOP;
    IF NOT target.joined THEN
        PERFORM pg_advisory_xact_lock_shared(penstock.queue_lock_class(), target.queue_id);
    END IF;
    IF target.plain IS NOT TRUE THEN
        PERFORM penstock.require_packed(
            q.name, (q.settings ->> 'max_message_bytes')::integer,
            count, body, ends, keys, key_ends, headers, header_ends
        )
        FROM penstock.queues q
        WHERE q.queue_id = target.queue_id;
    END IF;

    -- New statements, hence new snapshots: under the locks they see every push, every segment and every group there is.
    IF producer IS NULL THEN
        SELECT newest.head_offset, greatest(clock_timestamp(), newest.created_at)
        INTO first_offset, created_at
        FROM penstock.newest_segment(target.partition_id) newest;
        IF NOT FOUND THEN
            first_offset := 0;
            created_at := clock_timestamp();
        END IF;
    ELSE
        -- Under the lock: whoever pushed this before has committed, or will never.
        INSERT INTO penstock.producers AS pushed (producer, sequence, pushed_at, partition_id, first_offset, count)
        SELECT
            producer, sequence, greatest(clock_timestamp(), newest.created_at), target.partition_id,
            coalesce(newest.head_offset, 0), count
        FROM (VALUES (1)) one
        LEFT JOIN LATERAL penstock.newest_segment(target.partition_id) newest ON true
        ON CONFLICT ON CONSTRAINT producers_pkey DO NOTHING
        RETURNING pushed.first_offset, pushed.pushed_at INTO first_offset, created_at;
        IF NOT FOUND THEN
            RETURN QUERY SELECT * FROM penstock.pushed_before(producer, sequence);
            RETURN;
        END IF;
    END IF;
    INSERT INTO penstock.segments (
        partition_id, base_offset, created_at, count, bytes,
        body, body_compressed, ends, keys, key_ends, headers, header_ends
    )
    VALUES (
        target.partition_id, first_offset, created_at, count, penstock.packed_bytes(body, keys, headers),
        CASE WHEN NOT target.compressed THEN body END, CASE WHEN target.compressed THEN body END,
        ends, keys, key_ends, headers, header_ends
    )
    -- Most groups are at the partition already. wake_partitions looks once more, and does what there is to do.
    RETURNING EXISTS (
        SELECT 1 FROM penstock.consumer_groups g
        WHERE g.queue_id = target.queue_id AND coalesce((
            SELECT j.state FROM penstock.journal j
            WHERE j.group_id = g.group_id AND j.partition_id = target.partition_id
            ORDER BY j.version DESC
            LIMIT 1
        ), 'i') IN ('i', 'p')
    ) INTO asleep;
    IF first_offset + count > penstock.offset_limit() THEN
        PERFORM penstock.refuse_full(partition_name);
    END IF;
    partition_id := target.partition_id;
    message_count := count;
    IF asleep THEN
        PERFORM penstock.wake_partitions(ARRAY[partition_id], ARRAY[first_offset]);
    END IF;
    RETURN NEXT;
END
$$;

-- penstock.push_segments(queue_names, partition_names, counts, bodies, ends, keys, key_ends, headers, header_ends,
--                        producer, sequence)
--
-- Appends packed segments to any number of partitions of any number of queues, in one transaction: the form that the
-- clients use. Queues and partitions are created on first use. Segments of one partition keep the order in which they
-- are given.
--
-- Locks, in this order: new names (sorted), then partitions by id (FOR NO KEY UPDATE, until the end of the caller's
-- transaction). Two transactions that push twice, to the same partitions in another order, can deadlock; PostgreSQL
-- then ends one of them with 40P01. A lock that is not granted within `penstock.lock_timeout` (default 10 s) is
-- 55P03. Both change nothing and may be retried, and so may 40001, which a REPEATABLE READ or SERIALIZABLE caller
-- gets if somebody pushed after its snapshot.
--
-- Parameters: parallel arrays, one entry per segment, packed as in the table `segments`; null for no keys or no
-- headers. If some values are null, a byte per message follows the ends (see null_flags). producer and sequence - who
-- pushes, and its number for this call: a call that is repeated within an hour, because its answer was lost, gets the
-- first answer and stores nothing. Null for calls that are not repeated, or that are part of a larger transaction.
-- Returns: one row per segment, in the order given: its partition, its first offset and the time of its messages.
-- Calls: lock_partitions, require_segments, append_numbered, pushed_before, use_lock_timeout. Tables: producers
-- (insert).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.push_segments(
    queue_names     text[],
    partition_names text[],
    counts          integer[],
    bodies          bytea[],
    ends            bytea[],
    keys            bytea[] DEFAULT NULL,
    key_ends        bytea[] DEFAULT NULL,
    headers         bytea[] DEFAULT NULL,
    header_ends     bytea[] DEFAULT NULL,
    producer        uuid    DEFAULT NULL,
    sequence        bigint  DEFAULT NULL
)
RETURNS TABLE (partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    targets bigint[];
    stored  record;
BEGIN
    IF coalesce(cardinality(queue_names), 0) = 0 THEN
        RAISE EXCEPTION 'an empty push: give at least one message' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(partition_names), cardinality(counts), cardinality(bodies), cardinality(ends)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'queue_names, partition_names, counts, bodies and ends must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.use_lock_timeout();
    targets := penstock.lock_partitions(queue_names, partition_names);
    PERFORM penstock.require_segments(targets, counts, bodies, ends, keys, key_ends, headers, header_ends);
    -- New statements, hence new snapshots: under the locks they see every push and every segment there is.
    IF producer IS NULL THEN
        RETURN QUERY SELECT * FROM penstock.append_numbered(
            targets, counts, bodies, ends, keys, key_ends, headers, header_ends
        );
        RETURN;
    END IF;
    RETURN QUERY SELECT * FROM penstock.pushed_before(producer, sequence);
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT
        array_agg(a.first_offset ORDER BY a.nth) AS offsets, array_agg(a.created_at ORDER BY a.nth) AS times
    INTO stored
    FROM penstock.append_numbered(
        targets, counts, bodies, ends, keys, key_ends, headers, header_ends
    ) WITH ORDINALITY a (partition_id, first_offset, message_count, created_at, nth);
    INSERT INTO penstock.producers (producer, sequence, pushed_at, partition_ids, first_offsets, counts, times)
    VALUES (producer, sequence, clock_timestamp(), targets, stored.offsets, counts, stored.times);
    RETURN QUERY SELECT * FROM unnest(targets, stored.offsets, counts, stored.times);
END
$$;

-- penstock.push_with_options(queue_names, partition_names, counts, bodies, ends, keys, key_ends, headers, header_ends,
--                            delays, due_ats, dedupe_ids, producer, sequence)
--
-- Does what push_segments does, for messages with a delay or a dedupe id. A segment with a delay or a due time is
-- stored as scheduled, and gets its offset when it is due. A message whose dedupe id was seen in its partition within
-- the queue's dedupe_window is not stored again; the answer says which message it repeats. The id of a delayed
-- message counts from now until one window after the message gets its offset.
--
-- Locks and errors are those of push_segments. A segment that is only scheduled, and has no dedupe ids, does not
-- block other pushes to its partition.
--
-- Parameters: those of push_segments; delays - seconds per segment, and due_ats - a time per segment: at most one of
-- the two, null for none; dedupe_ids - an entry per message of all segments, one segment after the other, null for
-- none.
-- Returns: one row per segment, in the order given: what was stored and where, or the id under which it is scheduled
-- and until when; for each duplicate its position in the segment, from 0, and the original's offset and time, or the
-- id under which that one is still scheduled.
-- Calls: use_lock_timeout, require_due, lock_partitions, require_segments, require_dedupe_ids, keep_messages,
-- append_numbered, packed_bytes, partition_span, read_answer. Tables: queues, partitions (read), scheduled,
-- dedupe_ids, producers (insert).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.push_with_options(
    queue_names     text[],
    partition_names text[],
    counts          integer[],
    bodies          bytea[],
    ends            bytea[],
    keys            bytea[]       DEFAULT NULL,
    key_ends        bytea[]       DEFAULT NULL,
    headers         bytea[]       DEFAULT NULL,
    header_ends     bytea[]       DEFAULT NULL,
    delays          float8[]      DEFAULT NULL,
    due_ats         timestamptz[] DEFAULT NULL,
    dedupe_ids      text[]        DEFAULT NULL,
    producer        uuid          DEFAULT NULL,
    sequence        bigint        DEFAULT NULL
)
RETURNS TABLE (
    partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz,
    scheduled_id bigint, due_at timestamptz,
    duplicate_positions integer[], duplicate_offsets bigint[], duplicate_times timestamptz[],
    duplicate_scheduled_ids bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    targets      bigint[];
    later        boolean[];
    now_here     timestamptz;
    -- Of every message with a dedupe id: which segment, its position there, the id, whether it is new.
    id_segments  integer[];
    id_positions integer[];
    id_targets   bigint[];
    id_texts     text[];
    id_fresh     boolean[];
    -- Its position in what is left of the segment.
    id_kept      integer[];
    -- Of every segment, once it is stored: its offset and time, or what it is scheduled under.
    offsets      bigint[];
    times        timestamptz[];
    schedule_ids bigint[];
    dues         timestamptz[];
    now_due      record;
    stored       record;
    answer       jsonb;
BEGIN
    IF coalesce(cardinality(queue_names), 0) = 0 THEN
        RAISE EXCEPTION 'an empty push: give at least one message' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(partition_names), cardinality(counts), cardinality(bodies), cardinality(ends),
        coalesce(cardinality(delays), cardinality(queue_names)), coalesce(cardinality(due_ats), cardinality(queue_names))
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'queue_names, partition_names, counts, bodies, ends, delays and due_ats must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_due(d.delay, d.due_at) FROM unnest(delays, due_ats) d (delay, due_at);
    PERFORM penstock.use_lock_timeout();
    later := ARRAY(
        SELECT d.delay IS NOT NULL OR d.due_at IS NOT NULL
        FROM unnest(counts, delays, due_ats) WITH ORDINALITY d (count, delay, due_at, segment)
        ORDER BY d.segment
    );
    targets := penstock.lock_partitions(
        queue_names, partition_names,
        -- A scheduled segment needs no lock of its own, unless dedupe ids have to be checked.
        CASE WHEN dedupe_ids IS NULL AND producer IS NULL THEN ARRAY(
            SELECT NOT u.later FROM unnest(later) WITH ORDINALITY u (later, segment) ORDER BY u.segment
        ) END
    );
    IF producer IS NOT NULL THEN
        -- A new statement, hence a new snapshot: under the locks it sees this push, if it came before.
        SELECT d.answer INTO answer FROM penstock.producers d
        WHERE d.producer = push_with_options.producer AND d.sequence = push_with_options.sequence;
        IF FOUND THEN
            RETURN QUERY SELECT * FROM penstock.read_answer(answer);
            RETURN;
        END IF;
    END IF;
    PERFORM penstock.require_segments(targets, counts, bodies, ends, keys, key_ends, headers, header_ends);
    now_here := clock_timestamp();
    dues := ARRAY(
        -- Not in the past: frequent sweeps begin where the last one ended.
        SELECT CASE
            WHEN d.delay IS NOT NULL THEN now_here + make_interval(secs => d.delay)
            WHEN d.due_at IS NOT NULL THEN greatest(d.due_at, now_here)
        END
        FROM unnest(counts, delays, due_ats) WITH ORDINALITY d (count, delay, due_at, segment)
        ORDER BY d.segment
    );

    IF dedupe_ids IS NOT NULL THEN
        PERFORM penstock.require_dedupe_ids(targets, counts, dedupe_ids);
        -- A new statement, hence a new snapshot: under the locks it sees every id that was seen.
        SELECT
            array_agg(i.segment ORDER BY i.segment, i.n), array_agg(i.n - 1 ORDER BY i.segment, i.n),
            array_agg(i.target ORDER BY i.segment, i.n), array_agg(i.dedupe_id ORDER BY i.segment, i.n),
            array_agg(i.nth = 1 AND k.seen_at IS NULL ORDER BY i.segment, i.n)
        INTO id_segments, id_positions, id_targets, id_texts, id_fresh
        FROM (
            SELECT
                s.segment::integer, d.n::integer, s.target, s.dedupe_window, d.dedupe_id,
                row_number() OVER (PARTITION BY s.target, d.dedupe_id ORDER BY s.segment, d.n) AS nth
            FROM (
                SELECT
                    u.target, u.count, u.segment, sum(u.count) OVER (ORDER BY u.segment) - u.count AS before,
                    (SELECT make_interval(secs => (q.settings ->> 'dedupe_window')::numeric::float8)
                     FROM penstock.queues q WHERE q.name = u.queue_name) AS dedupe_window
                FROM unnest(targets, counts, queue_names) WITH ORDINALITY u (target, count, queue_name, segment)
            ) s
            CROSS JOIN LATERAL unnest(dedupe_ids[s.before + 1 : s.before + s.count]) WITH ORDINALITY d (dedupe_id, n)
            WHERE d.dedupe_id IS NOT NULL
        ) i
        -- LIMIT, here and below: a plain join, planned for a small table, goes through all ids there are. And no other
        -- condition within it: another index might then seem as good.
        LEFT JOIN LATERAL (
            SELECT k.seen_at FROM penstock.dedupe_ids k
            WHERE k.partition_id = i.target AND k.dedupe_id = i.dedupe_id
            LIMIT 1
        ) k ON k.seen_at > now_here - i.dedupe_window;
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            -- This snapshot may show an id that was forgotten since; locking it fails then.
            PERFORM 1
            FROM unnest(id_targets, id_texts, id_fresh) i (target, dedupe_id, fresh)
            CROSS JOIN LATERAL (
                SELECT 1 FROM penstock.dedupe_ids k
                WHERE k.partition_id = i.target AND k.dedupe_id = i.dedupe_id
                LIMIT 1
                FOR KEY SHARE
            ) k
            WHERE NOT i.fresh;
        END IF;
    END IF;

    id_kept := id_positions;
    IF false = ANY (id_fresh) THEN
        id_kept := ARRAY(
            SELECT i.position - count(*) FILTER (WHERE NOT i.fresh) OVER (
                PARTITION BY i.segment ORDER BY i.position ROWS UNBOUNDED PRECEDING
            )
            FROM unnest(id_segments, id_positions, id_fresh) WITH ORDINALITY i (segment, position, fresh, n)
            ORDER BY i.n
        );
        SELECT
            array_agg(k.count ORDER BY s.segment), array_agg(k.body ORDER BY s.segment),
            array_agg(k.ends ORDER BY s.segment),
            array_agg(k.keys ORDER BY s.segment), array_agg(k.key_ends ORDER BY s.segment),
            array_agg(k.headers ORDER BY s.segment), array_agg(k.header_ends ORDER BY s.segment)
        INTO counts, bodies, ends, keys, key_ends, headers, header_ends
        FROM unnest(counts, bodies, ends, keys, key_ends, headers, header_ends) WITH ORDINALITY
            s (count, body, ends, keys, key_ends, headers, header_ends, segment)
        LEFT JOIN (
            SELECT i.segment, array_agg(i.position) AS positions
            FROM unnest(id_segments, id_positions, id_fresh) i (segment, position, fresh)
            WHERE NOT i.fresh
            GROUP BY i.segment
        ) d ON d.segment = s.segment
        CROSS JOIN LATERAL penstock.keep_messages(
            s.count, s.body, s.ends, s.keys, s.key_ends, s.headers, s.header_ends, d.positions
        ) k;
    END IF;

    offsets := array_fill(NULL::bigint, ARRAY[cardinality(targets)]);
    times := array_fill(now_here, ARRAY[cardinality(targets)]);
    SELECT
        array_agg(s.target ORDER BY s.segment) AS targets, array_agg(s.count ORDER BY s.segment) AS counts,
        array_agg(s.body ORDER BY s.segment) AS bodies, array_agg(s.ends ORDER BY s.segment) AS ends,
        array_agg(s.keys ORDER BY s.segment) AS keys, array_agg(s.key_ends ORDER BY s.segment) AS key_ends,
        array_agg(s.headers ORDER BY s.segment) AS headers, array_agg(s.header_ends ORDER BY s.segment) AS header_ends,
        array_agg(s.segment ORDER BY s.segment) AS segments
    INTO now_due
    FROM unnest(targets, later, counts, bodies, ends, keys, key_ends, headers, header_ends) WITH ORDINALITY
        s (target, later, count, body, ends, keys, key_ends, headers, header_ends, segment)
    WHERE s.count > 0 AND NOT s.later;
    IF now_due.targets IS NOT NULL THEN
        FOR stored IN
            SELECT a.*, now_due.segments[a.nth] AS segment
            FROM penstock.append_numbered(
                now_due.targets, now_due.counts, now_due.bodies, now_due.ends,
                now_due.keys, now_due.key_ends, now_due.headers, now_due.header_ends
            ) WITH ORDINALITY a (target, first_offset, message_count, created_at, nth)
        LOOP
            offsets[stored.segment] := stored.first_offset;
            times[stored.segment] := stored.created_at;
        END LOOP;
    END IF;

    schedule_ids := ARRAY(
        SELECT CASE WHEN s.later AND s.count > 0 THEN nextval('penstock.scheduled_seq') END
        FROM unnest(counts, later) WITH ORDINALITY s (count, later, segment)
        ORDER BY s.segment
    );
    INSERT INTO penstock.scheduled (
        scheduled_id, queue_id, partition_id, due_at, created_at, count, bytes,
        body, ends, keys, key_ends, headers, header_ends, dedupe_ids, dedupe_positions
    )
    SELECT
        s.scheduled_id, (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = s.target), s.target,
        s.due_at, now_here, s.count, penstock.packed_bytes(s.body, s.keys, s.headers),
        s.body, s.ends, s.keys, s.key_ends, s.headers, s.header_ends, i.dedupe_ids, i.positions
    FROM unnest(
        schedule_ids, targets, dues, counts, bodies, ends, keys, key_ends, headers, header_ends
    ) WITH ORDINALITY s (
        scheduled_id, target, due_at, count, body, ends, keys, key_ends, headers, header_ends, segment
    )
    LEFT JOIN (
        SELECT
            i.segment, array_agg(i.dedupe_id ORDER BY i.kept) AS dedupe_ids, array_agg(i.kept ORDER BY i.kept) AS positions
        FROM unnest(id_segments, id_kept, id_texts, id_fresh) i (segment, kept, dedupe_id, fresh)
        WHERE i.fresh
        GROUP BY i.segment
    ) i ON i.segment = s.segment
    WHERE s.scheduled_id IS NOT NULL;

    IF id_fresh IS NOT NULL THEN
        INSERT INTO penstock.dedupe_ids AS k (
            partition_id, dedupe_id, queue_id, seen_at, message_offset, scheduled_id
        )
        SELECT
            i.target, i.dedupe_id, (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = i.target),
            CASE WHEN later[i.segment] THEN 'infinity' ELSE times[i.segment] END,
            offsets[i.segment] + i.kept, schedule_ids[i.segment]
        FROM unnest(id_segments, id_kept, id_targets, id_texts, id_fresh) i (segment, kept, target, dedupe_id, fresh)
        WHERE i.fresh
        -- One that outlived its window. Maintenance may delete it right now: then it is inserted.
        ON CONFLICT ON CONSTRAINT dedupe_ids_pkey DO UPDATE
        SET seen_at = EXCLUDED.seen_at, message_offset = EXCLUDED.message_offset, scheduled_id = EXCLUDED.scheduled_id;
    END IF;

    SELECT jsonb_agg(jsonb_build_object(
        'partition_id', s.target,
        -- Of what was repeated altogether, where the next message would go.
        'first_offset', CASE WHEN s.later THEN NULL WHEN s.count > 0 THEN s.first_offset ELSE (
            SELECT p.head_offset FROM penstock.partition_span(s.target) p
        ) END,
        'message_count', s.count, 'created_at', s.created_at,
        'scheduled_id', s.scheduled_id, 'due_at', CASE WHEN s.later THEN s.due_at END,
        'duplicate_positions', d.positions, 'duplicate_offsets', d.offsets,
        'duplicate_times', d.times, 'duplicate_scheduled_ids', d.scheduled_ids
    ) ORDER BY s.segment)
    INTO answer
    FROM unnest(targets, later, counts, offsets, times, schedule_ids, dues) WITH ORDINALITY
        s (target, later, count, first_offset, created_at, scheduled_id, due_at, segment)
    LEFT JOIN (
        SELECT
            i.segment, array_agg(i.position ORDER BY i.position) AS positions,
            array_agg(k.message_offset ORDER BY i.position) AS offsets,
            array_agg(nullif(k.seen_at, 'infinity') ORDER BY i.position) AS times,
            array_agg(k.scheduled_id ORDER BY i.position) AS scheduled_ids
        FROM unnest(id_segments, id_positions, id_targets, id_texts, id_fresh)
            i (segment, position, target, dedupe_id, fresh)
        CROSS JOIN LATERAL (
            SELECT k.* FROM penstock.dedupe_ids k
            WHERE k.partition_id = i.target AND k.dedupe_id = i.dedupe_id
            LIMIT 1
        ) k
        WHERE NOT i.fresh
        GROUP BY i.segment
    ) d ON d.segment = s.segment;
    IF producer IS NOT NULL THEN
        INSERT INTO penstock.producers (producer, sequence, pushed_at, answer)
        VALUES (push_with_options.producer, push_with_options.sequence, now_here, answer);
    END IF;
    RETURN QUERY SELECT * FROM penstock.read_answer(answer);
END
$$;

-- penstock.abort_stages(writer, run, stage_ids)
--
-- Removes stages that were not published, if they belong to this run of this writer.
--
-- Parameters: writer, run - as in begin_stage; stage_ids.
-- Returns: the number removed; raises insufficient_privilege if the writer belongs to another user.
-- Calls: require_own_writer, remove_stages. Tables: stages (read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.abort_stages(writer text, run text, stage_ids bigint[])
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.require_own_writer(abort_stages.writer);
    RETURN penstock.remove_stages(ARRAY(
        SELECT s.stage_id FROM penstock.stages s
        WHERE s.stage_id = ANY (stage_ids) AND s.writer = abort_stages.writer AND s.run = abort_stages.run
    ));
END
$$;

-- penstock.advance_reader(queue_name, group_name, partition_ids, offsets, lineage, takes_over)
--
-- Reports how far an external group has read. Positions only go forward, except for a reader that takes the group
-- over. A partition that somebody is pushing to is skipped and counted as busy: report it again with the next call.
--
-- A group has one reader. If two queries report positions for one group, the one that started last keeps it and the
-- other gets an error: retention would otherwise drop messages that the slower one has not read. The group of a flow
-- belongs to the flow, which has its own rules for who may publish.
--
-- Parameters: partition_ids, offsets - parallel arrays; all messages below the offset are done; lineage - the reader,
-- by its lineage of snapshots, or null; takes_over - whether the reader starts and takes the group over.
-- Returns: the number of positions moved, and of busy partitions; raises object_not_in_prerequisite_state if another
-- reader has taken the group over.
-- Calls: require_read_committed, ensure_reader, partition_span, find_queue, newest_state. Tables: consumer_groups
-- (update), flows (read), partitions (lock), journal, ready (insert, delete), queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.advance_reader(
    queue_name text, group_name text, partition_ids bigint[], offsets bigint[],
    lineage bigint DEFAULT NULL, takes_over boolean DEFAULT false
)
RETURNS TABLE (moved bigint, busy bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    reader integer := penstock.ensure_reader(queue_name, group_name);
    queue  integer := penstock.find_queue(queue_name);
    levels smallint[];
    wanted bigint[];
    locked bigint[];
    owner  bigint;
    exact  boolean := false;
BEGIN
    PERFORM penstock.require_read_committed('advance_reader');
    -- Against delete_group, which would not see what is appended here.
    PERFORM 1 FROM penstock.consumer_groups g WHERE g.group_id = reader FOR KEY SHARE;
    IF advance_reader.lineage IS NOT NULL AND NOT EXISTS (SELECT 1 FROM penstock.flows f WHERE f.name = group_name) THEN
        owner := (SELECT g.lineage FROM penstock.consumer_groups g WHERE g.group_id = reader);
        IF owner <> advance_reader.lineage AND NOT takes_over THEN
            RAISE EXCEPTION 'group "%" of queue "%" was taken over by another query with the same groupId',
                group_name, queue_name
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Give each query a groupId of its own.';
        END IF;
        IF owner IS DISTINCT FROM advance_reader.lineage THEN
            UPDATE penstock.consumer_groups g SET lineage = advance_reader.lineage WHERE g.group_id = reader;
        END IF;
        exact := takes_over;
    END IF;
    levels := (SELECT q.priorities FROM penstock.queues q WHERE q.queue_id = queue);
    wanted := ARRAY(
        SELECT w.partition_id FROM unnest(partition_ids) w (partition_id)
        JOIN penstock.partitions p ON p.partition_id = w.partition_id AND p.queue_id = queue
    );
    -- The lock makes us the only one who may append: nobody pops with this group.
    locked := ARRAY(
        SELECT p.partition_id FROM penstock.partitions p
        WHERE p.partition_id = ANY (wanted)
        ORDER BY p.partition_id
        FOR NO KEY UPDATE SKIP LOCKED
    );
    busy := cardinality(wanted) - cardinality(locked);
    WITH moving AS MATERIALIZED (
        SELECT
            w.partition_id, p.priority, coalesce(j.version, 0) AS version, coalesce(j.skipped, 0) AS skipped,
            j.ready_seq AS old_seq, s.head_offset, least(w.position, s.head_offset) AS committed,
            CASE WHEN s.head_offset > w.position THEN nextval('penstock.ready_seq') END AS seq
        FROM unnest(partition_ids, offsets) w (partition_id, position)
        JOIN unnest(locked) l (partition_id) ON l.partition_id = w.partition_id
        CROSS JOIN LATERAL (
            SELECT p.priority FROM penstock.partitions p WHERE p.partition_id = w.partition_id LIMIT 1
        ) p
        CROSS JOIN LATERAL penstock.partition_span(w.partition_id) s
        LEFT JOIN LATERAL penstock.newest_state(reader, w.partition_id) j ON true
        WHERE j.version IS NULL OR least(w.position, s.head_offset) > j.committed
           OR exact AND least(w.position, s.head_offset) < j.committed
    ), left_list AS (
        DELETE FROM penstock.ready y
        USING moving m, unnest(levels) v (level)
        WHERE y.group_id = reader AND y.priority = v.level AND y.seq = m.old_seq
    ), trimmed AS (
        DELETE FROM penstock.journal j
        USING moving m
        WHERE j.group_id = reader AND j.partition_id = m.partition_id AND j.version BETWEEN m.version - 8 AND m.version
    ), appended AS (
        -- Not by append_state: a query may have a hundred thousand partitions, and a call for each takes half as long
        -- again.
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, ready_seq, acked_at
        )
        SELECT
            reader, m.partition_id, m.version + 1, CASE WHEN m.seq IS NULL THEN 'i' ELSE 'r' END::"char",
            m.committed, m.committed, m.skipped, m.seq, clock_timestamp()
        FROM moving m
    ), joined AS (
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
        SELECT reader, m.priority, m.seq, m.partition_id FROM moving m WHERE m.seq IS NOT NULL
    )
    SELECT count(*) INTO moved FROM moving;
    RETURN NEXT;
END
$$;

-- penstock.backlog_by_time(partition_ids, starts, stops, max_messages, max_pieces)
--
-- Returns when the messages of ranges were pushed and how large they are, so that a reader can take the oldest of
-- many partitions first. Messages of one second and partition are one piece. It reads segment rows without their
-- payload; each message counts as the average of its segment.
--
-- Parameters: parallel arrays, one entry per range; max_messages - the rest of a range after so many messages is left
-- out (but a segment is counted as a whole); max_pieces - the largest number of segments of a range, and of pushes of
-- a merged segment, to look at.
-- Returns: one row of parallel arrays, in the order of the ranges and of their offsets: the position of the range
-- (from 1), the first offset of a piece, its messages and bytes, and its second since 1970. Messages that retention
-- dropped are left out. If the last piece of a range ends before the range, the range has more.
-- Calls: partition_span, run_of. Tables: segments, archived (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.backlog_by_time(
    partition_ids bigint[], starts bigint[], stops bigint[], max_messages bigint, max_pieces integer
)
RETURNS TABLE (range_positions bigint[], first_offsets bigint[], messages bigint[], bytes bigint[], seconds bigint[])
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT
        array_agg(p.position), array_agg(p.first_offset), array_agg(p.messages), array_agg(p.bytes), array_agg(p.second)
    FROM (
        SELECT
            r.position, x.second, min(x.lo) AS first_offset, sum(x.hi - x.lo)::bigint AS messages,
            sum((x.hi - x.lo) * s.average)::bigint AS bytes
        FROM unnest(partition_ids, starts, stops) WITH ORDINALITY r (partition_id, start, stop, position)
        CROSS JOIN LATERAL (
            SELECT s.*
            FROM (
                SELECT s.*, sum(s.count) OVER (ORDER BY s.base_offset) - s.count AS messages_before
                FROM (
                    -- Where the log begins later than the range, the archive comes before it.
                    (SELECT
                        a.start_offset AS base_offset, least(a.stop_offset, p.floor_offset) - a.start_offset AS count,
                        a.bytes::float8 / (a.stop_offset - a.start_offset) AS average, a.first_time AS created_at,
                        a.last_time, NULL::integer[] AS run_counts, NULL::timestamptz[] AS run_times
                    FROM penstock.archived a
                    CROSS JOIN LATERAL (
                        SELECT p.floor_offset FROM penstock.partition_span(r.partition_id) p
                    ) p
                    WHERE a.partition_id = r.partition_id AND a.stop_offset > r.start AND a.start_offset < r.stop
                      AND a.start_offset < p.floor_offset
                    ORDER BY a.start_offset
                    LIMIT max_pieces)
                    UNION ALL
                    (SELECT
                        s.base_offset, s.count, s.bytes::float8 / s.count, s.created_at, s.created_at,
                        s.run_counts, s.run_times
                    FROM penstock.segments s
                    WHERE s.partition_id = r.partition_id
                      AND s.base_offset >= coalesce((
                          SELECT f.base_offset FROM penstock.segments f
                          WHERE f.partition_id = r.partition_id AND f.base_offset <= r.start
                          ORDER BY f.base_offset DESC
                          LIMIT 1
                      ), 0)
                      AND s.base_offset < r.stop AND s.base_offset + s.count > r.start AND s.ends IS NOT NULL
                    ORDER BY s.base_offset
                    LIMIT max_pieces)
                ) s
            ) s
            -- The first one may begin long before the range.
            WHERE s.messages_before < max_messages + greatest(r.start - s.base_offset, 0)
            ORDER BY s.base_offset
            LIMIT max_pieces
        ) s
        CROSS JOIN LATERAL (
            SELECT
                greatest(t.lo, r.start) AS lo, least(t.hi, r.stop) AS hi, floor(extract(epoch FROM t.at))::bigint AS second
            FROM (
                SELECT s.base_offset AS lo, s.base_offset + s.count AS hi, s.created_at AS at
                WHERE s.run_counts IS NULL AND s.last_time = s.created_at
                UNION ALL
                -- Of what is archived only the first and the last time are known; the others are taken to lie evenly.
                SELECT
                    s.base_offset + s.count * i / n.parts, s.base_offset + s.count * (i + 1) / n.parts,
                    s.created_at + (s.last_time - s.created_at) * i / n.parts
                FROM (SELECT least(s.count, 16) AS parts) n
                CROSS JOIN LATERAL generate_series(0, n.parts - 1) i
                WHERE s.run_counts IS NULL AND s.last_time > s.created_at
                UNION ALL
                SELECT s.base_offset + u.before + u.upto - u.count, s.base_offset + u.before + u.upto, u.at
                FROM (
                    SELECT c.count, c.at, f.run[2] AS before, sum(c.count) OVER (ORDER BY c.position) AS upto
                    FROM (
                        SELECT CASE WHEN r.start <= s.base_offset OR s.run_counts IS NULL THEN ARRAY[1, 0]
                            ELSE penstock.run_of(s.run_counts, (r.start - s.base_offset)::integer, s.count::integer) END
                            AS run
                    ) f
                    CROSS JOIN LATERAL unnest(
                        s.run_counts[f.run[1] : f.run[1] + max_pieces - 1],
                        s.run_times[f.run[1] : f.run[1] + max_pieces - 1]
                    ) WITH ORDINALITY c (count, at, position)
                ) u
                WHERE s.run_counts IS NOT NULL
            ) t
            WHERE t.hi > r.start AND t.lo < r.stop
        ) x
        -- Staged segments have negative partition ids and are not visible here.
        WHERE r.partition_id > 0
        GROUP BY r.position, x.second
        ORDER BY r.position, x.second
    ) p
$$;

-- penstock.begin_stage(writer, run, epoch)
--
-- Begins a stage, which holds what one attempt of one task writes until it is published. This commit and that of
-- stage_segments wait for the disk: if a crash of the database lost what a task has staged, its epoch could not be
-- published.
--
-- Parameters: writer - the id of the query, or of a batch write; run - the id of this start of it; epoch - the number
-- of the batch.
-- Returns: the id of the stage.
-- Calls: register_run. Tables: stages (insert).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.begin_stage(writer text, run text, epoch bigint)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    begun bigint;
BEGIN
    IF num_nonnulls(writer, run, epoch) < 3 OR epoch < 0 THEN
        RAISE EXCEPTION 'a stage requires a writer, a run, and an epoch of 0 or above'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.register_run(writer, run);
    INSERT INTO penstock.stages (writer, run, epoch) VALUES (begin_stage.writer, begin_stage.run, begin_stage.epoch)
    RETURNING stage_id INTO begun;
    RETURN begun;
END
$$;

-- penstock.deleted_ends(partition_ids)
--
-- Returns the heads of deleted partitions, so that a reader that keeps its own positions can check whether it had
-- read them to the end.
--
-- Parameters: partition_ids.
-- Returns: a row per partition that was deleted in the last 30 days from a queue with such a reader.
-- Calls: nothing. Tables: deleted_partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.deleted_ends(partition_ids bigint[])
RETURNS TABLE (partition_id bigint, head_offset bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.partition_id, d.head_offset FROM penstock.deleted_partitions d
    WHERE d.partition_id = ANY (deleted_ends.partition_ids)
$$;

-- penstock.ensure_reader(queue_name, group_name)
--
-- Creates an external group, or finds it: a group whose reader keeps its own positions and reports them with
-- advance_reader.
--
-- Parameters: the names.
-- Returns: the group's id; raises object_not_in_prerequisite_state if consumers read with this group.
-- Calls: find_queue, create_group. Tables: consumer_groups (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.ensure_reader(queue_name text, group_name text)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    queue integer := penstock.find_queue(queue_name);
    found record;
BEGIN
    BEGIN
        IF NOT EXISTS (
            SELECT 1 FROM penstock.consumer_groups g WHERE g.queue_id = queue AND g.name = group_name
        ) THEN
            PERFORM penstock.create_group(queue_name, group_name, '{}', 'all', NULL, 'external');
        END IF;
    EXCEPTION WHEN duplicate_object THEN
        NULL; -- somebody was first
    END;
    SELECT g.group_id, g.mode INTO found
    FROM penstock.consumer_groups g WHERE g.queue_id = queue AND g.name = group_name;
    IF found.mode <> 'external' THEN
        RAISE EXCEPTION 'group "%" of queue "%" is % and read by consumers; a Spark query cannot use it too',
            group_name, queue_name, found.mode
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Choose another groupId.';
    END IF;
    RETURN found.group_id;
END
$$;

-- penstock.keep_snapshot(snapshot)
--
-- Marks a snapshot as used. Snapshots that were not used for 90 days are removed, and a query may have nothing to
-- read for months. Writes at most once a day.
--
-- Parameters: snapshot.
-- Returns: nothing.
-- Calls: nothing. Tables: snapshots (update).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.keep_snapshot(snapshot bigint)
RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE penstock.snapshots s SET created_at = clock_timestamp()
    WHERE s.snapshot_id = snapshot AND s.created_at < clock_timestamp() - interval '1 day'
$$;

-- penstock.list_stages()
--
-- Lists the stages: what Spark jobs have written and not published.
--
-- Returns: a row per stage, oldest first: its writer, its size, and when it was last written to.
-- Calls: nothing. Tables: stages, staged, segments (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.list_stages()
RETURNS TABLE (
    stage_id bigint, writer text, run text, epoch bigint, segments bigint, messages bigint, bytes bigint,
    last_written timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        s.stage_id, s.writer, s.run, s.epoch, g.segments, g.messages, g.bytes,
        greatest(s.created_at, (SELECT max(d.staged_at) FROM penstock.staged d WHERE d.stage_id = s.stage_id))
    FROM penstock.stages s
    CROSS JOIN LATERAL (
        SELECT count(*) AS segments, coalesce(sum(g.count), 0)::bigint AS messages, coalesce(sum(g.bytes), 0)::bigint AS bytes
        FROM penstock.segments g
        WHERE g.partition_id = -s.stage_id
    ) g
    ORDER BY s.stage_id
$$;

-- penstock.next_snapshot(snapshot)
--
-- Returns the snapshot that was saved after another one. A query that returns to an earlier snapshot, because its
-- checkpoint went back, must read exactly the same again: an epoch of it may be published, here or in another
-- database.
--
-- Parameters: snapshot.
-- Returns: the id and token of the next snapshot, or no row. If there are several, the published one, or else the
-- newest: a call that was repeated because its connection broke leaves older ones that nobody knows.
-- Calls: nothing. Tables: snapshots (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.next_snapshot(snapshot bigint)
RETURNS TABLE (snapshot_id bigint, snapshot_token text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    SELECT s.snapshot_id, s.token FROM penstock.snapshots s
    WHERE s.parent = snapshot AND s.parent > 0
    ORDER BY s.published DESC, s.snapshot_id DESC
    LIMIT 1
$$;

-- penstock.note_epoch(writer, run, epoch, snapshot)
--
-- Records which snapshot an epoch reads. The tasks that read know it; the commit of the tasks that write needs it.
--
-- Parameters: writer, run, epoch - as in begin_stage; snapshot - where the epoch ends.
-- Returns: nothing.
-- Calls: nothing. Tables: epoch_sources (insert, delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.note_epoch(writer text, run text, epoch bigint, snapshot bigint)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- With a sink of another kind nobody else removes them.
    DELETE FROM penstock.epoch_sources e
    WHERE e.writer = note_epoch.writer AND e.run = note_epoch.run AND e.epoch < note_epoch.epoch - 1;
    INSERT INTO penstock.epoch_sources (writer, run, epoch, snapshot_id)
    VALUES (note_epoch.writer, note_epoch.run, note_epoch.epoch, snapshot)
    ON CONFLICT DO NOTHING;
END
$$;

-- penstock.plan_ranges(partition_ids, starts, stops, page_bytes)
--
-- Cuts ranges of offsets into pages of about page_bytes, at the borders of segments. It reads segment rows without
-- their payload.
--
-- Parameters: parallel arrays, one entry per range; page_bytes - the size of a page.
-- Returns: the pages, in the order of the ranges and of their offsets; messages that retention dropped are in none.
-- Calls: nothing. Tables: segments (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.plan_ranges(
    partition_ids bigint[], starts bigint[], stops bigint[], page_bytes bigint DEFAULT 8388608
)
RETURNS TABLE (partition_id bigint, start_offset bigint, stop_offset bigint, bytes bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT r.partition_id, s.start_offset, s.stop_offset, s.bytes
    FROM unnest(partition_ids, starts, stops) WITH ORDINALITY r (partition_id, start, stop, position)
    CROSS JOIN LATERAL (
        SELECT
            greatest(min(s.base_offset), r.start) AS start_offset,
            least(max(s.base_offset + s.count), r.stop) AS stop_offset,
            -- A part of a segment counts as a part of its bytes.
            sum(s.bytes::bigint * (least(s.base_offset + s.count, r.stop) - greatest(s.base_offset, r.start)) / s.count)
                ::bigint AS bytes
        FROM (
            SELECT
                s.base_offset, s.count, s.bytes,
                (sum(s.bytes) OVER (ORDER BY s.base_offset) - s.bytes) / page_bytes AS page
            FROM penstock.segments s
            WHERE s.partition_id = r.partition_id
              AND s.base_offset >= coalesce((
                  SELECT f.base_offset FROM penstock.segments f
                  WHERE f.partition_id = r.partition_id AND f.base_offset <= r.start
                  ORDER BY f.base_offset DESC
                  LIMIT 1
              ), 0)
              AND s.base_offset < r.stop AND s.base_offset + s.count > r.start AND s.ends IS NOT NULL
        ) s
        GROUP BY s.page
    ) s
    -- Staged segments have negative partition ids and are not visible here.
    WHERE r.partition_id > 0
    ORDER BY r.position, s.start_offset
$$;

-- penstock.publish_stages(writer, run, epoch, stage_ids, stage_messages, target, reading)
--
-- Publishes an epoch: the segments of its stages become messages of their partitions, in one transaction and exactly
-- once. Only the key of each segment is written; the payload stays where it is, unless it is so small (some 2 KB)
-- that it is stored in the row itself.
--
-- The rules, under a lock per writer: a run that was replaced by a newer one is refused. An epoch beyond the next one
-- is refused, because one was lost in between. An epoch that is already published is skipped if it reads the same
-- from its sources and has the same target, and refused otherwise. If a stage is gone or does not hold the messages
-- that its task reported, nothing is published; the same if a queue that the writer has written to was deleted since,
-- because it would be created again without its settings.
--
-- Locks, in this order: the writer, the stages, new names (sorted), partitions by id, then queues, as push_segments
-- does.
--
-- Parameters: writer, run, epoch - as in begin_stage; stage_ids - the attempts that count, in the order of their
-- messages; stage_messages - the number of messages of each; target - the queue of the sink, empty if each row names
-- its own; reading - what all sources read, as any text that is equal for equal reading. Null for either: unknown,
-- and not compared.
-- Returns: one row: 'published' or 'skipped', and the number of segments and messages of the epoch.
-- Calls: require_read_committed, use_lock_timeout, register_run, publish_segments, forget_stages, remove_stages.
-- Tables: stages (lock), staged, queues (read), sink_runs, sink_commits, epoch_sources, snapshots.
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.publish_stages(
    writer text, run text, epoch bigint, stage_ids bigint[], stage_messages bigint[],
    target text DEFAULT NULL, reading text DEFAULT NULL
)
RETURNS TABLE (outcome text, segments bigint, messages bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    run_number bigint;
    last       penstock.sink_commits;
    before     penstock.sink_commits;
    reads      bigint[];
    broken     bigint;
    queues     text[];
    gone       text;
BEGIN
    PERFORM penstock.require_read_committed('publish_stages');
    PERFORM penstock.use_lock_timeout();
    -- The class of the lock: see queue_lock_class.
    PERFORM pg_advisory_xact_lock(1885695604, hashtext(writer));
    -- Each a new statement: under the lock it sees what the last publisher of this writer did.
    run_number := penstock.register_run(writer, run);
    IF EXISTS (SELECT 1 FROM penstock.sink_runs r WHERE r.writer = writer AND r.run_number > run_number) THEN
        RAISE EXCEPTION 'run % of query % was replaced by a newer one and may not publish', run, writer
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Stop this driver: another one goes on with the same checkpoint.';
    END IF;
    reads := ARRAY(
        SELECT e.snapshot_id FROM penstock.epoch_sources e
        WHERE e.writer = writer AND e.run = run AND e.epoch = epoch
        ORDER BY e.snapshot_id
    );
    SELECT c.* INTO last FROM penstock.sink_commits c WHERE c.writer = writer ORDER BY c.epoch DESC LIMIT 1;
    IF epoch <= last.epoch THEN
        SELECT c.* INTO before FROM penstock.sink_commits c WHERE c.writer = writer AND c.epoch = epoch;
        IF before.target <> target THEN
            RAISE EXCEPTION 'epoch % of query % was published to %, and this run would write it to %',
                epoch, writer, coalesce(nullif(before.target, ''), 'the queues that its rows name'),
                coalesce(nullif(target, ''), 'the queues that its rows name')
                USING ERRCODE = '55PS1',
                      HINT = 'Two queries must not share a checkpoint, nor have copies of one. To change where a query '
                             'writes, let it finish with the old queue once, or begin a new checkpoint.';
        END IF;
        -- The same run comes twice when its connection broke and it does not know whether it has published.
        IF before.epoch IS NULL OR before.run <> run AND (
            before.sources <> reads OR before.reading <> reading OR cardinality(reads) = 0 AND before.messages <> coalesce(
                (SELECT sum(m) FROM unnest(stage_messages) m), 0
            )
        ) THEN
            RAISE EXCEPTION 'epoch % of query % is published already, and with other content', epoch, writer
                USING ERRCODE = '55PS1',
                      HINT = 'The checkpoint has gone back, behind what was published. Restore it, or go on with a '
                             'new checkpoint that starts where the published epochs end.';
        END IF;
        PERFORM penstock.remove_stages(ARRAY(
            SELECT s.stage_id FROM penstock.stages s WHERE s.writer = writer AND s.epoch <= epoch
        ));
        RETURN QUERY SELECT 'skipped', before.segments, before.messages;
        RETURN;
    END IF;
    IF epoch > last.epoch + 1 THEN
        RAISE EXCEPTION 'epoch % of query % comes after epoch %: the epochs between were not published',
            epoch, writer, last.epoch
            USING ERRCODE = '55PS1',
                  HINT = 'Was the database restored to an earlier state, or the query written elsewhere for a while? '
                         'Go on with a new checkpoint.';
    END IF;

    PERFORM 1 FROM penstock.stages s WHERE s.stage_id = ANY (stage_ids) ORDER BY s.stage_id FOR UPDATE;
    SELECT w.stage_id INTO broken
    FROM unnest(stage_ids, stage_messages) w (stage_id, wanted)
    LEFT JOIN penstock.stages s ON s.stage_id = w.stage_id AND s.writer = writer AND s.run = run AND s.epoch = epoch
    LEFT JOIN LATERAL (
        SELECT sum(c) AS held FROM penstock.staged d CROSS JOIN LATERAL unnest(d.counts) c WHERE d.stage_id = w.stage_id
    ) d ON true
    WHERE s.stage_id IS NULL OR coalesce(d.held, 0) <> w.wanted
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'stage % of epoch % of query % is gone or incomplete; nothing was published',
            broken, epoch, writer
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Abandoned stages are removed after a day: was the job suspended? Run it again.';
    END IF;

    queues := ARRAY(
        SELECT DISTINCT n FROM penstock.staged d CROSS JOIN LATERAL unnest(d.queue_names) n
        WHERE d.stage_id = ANY (stage_ids)
    );
    SELECT n INTO gone FROM unnest(last.queues) n
    WHERE n = ANY (queues) AND NOT EXISTS (SELECT 1 FROM penstock.queues q WHERE q.name = n)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'queue "%", which query % writes to, was deleted; nothing was published', gone, writer
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Create it again, with its settings, and run the query again.';
    END IF;
    SELECT p.segments, p.messages INTO segments, messages FROM penstock.publish_segments(stage_ids) p;
    PERFORM penstock.forget_stages(stage_ids);
    INSERT INTO penstock.sink_commits (writer, epoch, run, sources, segments, messages, target, reading, queues)
    VALUES (
        writer, epoch, run, reads, segments, messages, target, reading,
        ARRAY(SELECT unnest(last.queues) UNION SELECT unnest(queues) ORDER BY 1)
    );
    UPDATE penstock.snapshots s SET published = true WHERE s.snapshot_id = ANY (reads);
    -- What lost: attempts of this epoch that do not count, and all of those before it.
    PERFORM penstock.remove_stages(ARRAY(
        SELECT s.stage_id FROM penstock.stages s WHERE s.writer = writer AND s.epoch <= epoch
    ));
    DELETE FROM penstock.epoch_sources e WHERE e.writer = writer AND e.epoch <= epoch;
    -- Spark keeps a hundred batches by default.
    DELETE FROM penstock.sink_commits c WHERE c.writer = writer AND c.epoch < epoch - 1000;
    outcome := 'published';
    RETURN NEXT;
END
$$;

-- penstock.published_batch(writer)
--
-- Returns whether a batch was published under a name.
--
-- Parameters: writer - the name.
-- Returns: a row with the number of messages and the time, or none.
-- Calls: nothing. Tables: sink_commits (read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.published_batch(writer text)
RETURNS TABLE (messages bigint, published_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.messages, c.published_at FROM penstock.sink_commits c WHERE c.writer = published_batch.writer AND c.epoch = 0
$$;

-- penstock.read_ranges(partition_ids, starts, stops)
--
-- Reads ranges of any number of partitions, still packed, in one call: the form that Spark's tasks use.
--
-- Parameters: parallel arrays, one entry per range.
-- Returns: the rows of segment_slices, each with the position of its range (from 1), in the order of the ranges.
-- Calls: segment_slices. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.read_ranges(partition_ids bigint[], starts bigint[], stops bigint[])
RETURNS TABLE (
    range_position bigint,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
    SELECT r.position, s.*
    FROM unnest(partition_ids, starts, stops) WITH ORDINALITY r (partition_id, start, stop, position)
    CROSS JOIN LATERAL penstock.segment_slices(r.partition_id, r.start, r.stop) s
    -- Staged segments have negative partition ids and are not visible here.
    WHERE r.partition_id > 0
$$;

-- penstock.reader_positions(queue_names, group_name)
--
-- Returns how far a group has read each partition that it knows, so that a reader that lost its own positions can
-- continue.
--
-- Parameters: queue_names - a queue that has no such group has no rows; group_name.
-- Returns: one row of parallel arrays: partition ids and positions.
-- Calls: newest_state. Tables: queues, consumer_groups, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.reader_positions(queue_names text[], group_name text)
RETURNS TABLE (partition_ids bigint[], positions bigint[])
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT array_agg(p.partition_id), array_agg(j.committed)
    FROM penstock.queues q
    JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id AND g.name = group_name
    JOIN penstock.partitions p ON p.queue_id = q.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
    CROSS JOIN LATERAL penstock.newest_state(g.group_id, p.partition_id) j
    WHERE q.name = ANY (queue_names)
$$;

-- penstock.save_snapshot(parent, parent_token, partition_ids, starts, ends, all_ids, all_positions)
--
-- Saves how far a batch of a streaming query reads, under an id that fits into Spark's checkpoint whatever the number
-- of partitions. Snapshots more than a thousand batches old are removed; Spark's checkpoint does not reach back so
-- far.
--
-- Parameters: parent, parent_token - the snapshot at which the batch begins, 0 for the first; partition_ids, starts,
-- ends - what it reads; all_ids, all_positions - the positions of all partitions after it, or null.
-- Returns: the id and token of the snapshot, and its lineage: the id of the query's first snapshot.
-- Calls: nothing. Tables: snapshots (insert, delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.save_snapshot(
    parent bigint, parent_token text, partition_ids bigint[], starts bigint[], ends bigint[],
    all_ids bigint[] DEFAULT NULL, all_positions bigint[] DEFAULT NULL
)
RETURNS TABLE (snapshot_id bigint, snapshot_token text, lineage bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    before record;
    saved  bigint := nextval(pg_get_serial_sequence('penstock.snapshots', 'snapshot_id'));
BEGIN
    IF (cardinality(partition_ids) = ALL (ARRAY[cardinality(starts), cardinality(ends)])) IS NOT TRUE
       OR cardinality(all_ids) <> cardinality(all_positions)
       OR parent = 0 AND all_ids IS NULL
    THEN
        RAISE EXCEPTION 'a snapshot needs arrays of one length, and all positions if it is the first'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF parent <> 0 THEN
        SELECT s.lineage, s.depth INTO before FROM penstock.snapshots s
        WHERE s.snapshot_id = parent AND s.token = parent_token;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no snapshot % with token %', parent, parent_token
                USING ERRCODE = '55PS1',
                      HINT = 'The checkpoint belongs to another database. Start with a new checkpoint.';
        END IF;
        DELETE FROM penstock.snapshots s WHERE s.lineage = before.lineage AND s.depth < before.depth - 1000;
    ELSE
        SELECT saved AS lineage, -1::bigint AS depth INTO before;
    END IF;
    INSERT INTO penstock.snapshots (
        snapshot_id, parent, lineage, depth, partition_ids, starts, ends, all_ids, all_positions
    ) OVERRIDING SYSTEM VALUE
    VALUES (
        saved, parent, before.lineage, before.depth + 1, partition_ids, starts, ends, all_ids, all_positions
    )
    RETURNING saved, token, before.lineage INTO snapshot_id, snapshot_token, lineage;
    RETURN NEXT;
END
$$;

-- penstock.snapshot_chain(snapshot, snapshot_token, down_to)
--
-- Returns a snapshot and those before it.
--
-- Parameters: snapshot, snapshot_token - where to begin; down_to - the snapshot to stop before, or null to stop at
-- the first that has the positions of all partitions.
-- Returns: a row per snapshot, newest first; raises undefined_object if one is missing.
-- Calls: nothing. Tables: snapshots (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.snapshot_chain(
    snapshot bigint, snapshot_token text, down_to bigint DEFAULT NULL
)
RETURNS TABLE (
    snapshot_id bigint, depth bigint, lineage bigint, partition_ids bigint[], starts bigint[], ends bigint[],
    all_ids bigint[], all_positions bigint[]
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next_id bigint := snapshot;
    seen    penstock.snapshots;
BEGIN
    WHILE next_id IS DISTINCT FROM down_to LOOP
        SELECT s.* INTO seen FROM penstock.snapshots s WHERE s.snapshot_id = next_id;
        IF NOT FOUND OR next_id = snapshot AND seen.token IS DISTINCT FROM snapshot_token THEN
            RAISE EXCEPTION 'there is no snapshot % on the way from % back to %', next_id, snapshot, down_to
                USING ERRCODE = '55PS1',
                      HINT = 'The checkpoint belongs to another database, is more than a thousand batches old, or its '
                             'query has not run for 90 days. '
                             'Start with a new checkpoint.';
        END IF;
        snapshot_id := seen.snapshot_id;
        depth := seen.depth;
        lineage := seen.lineage;
        partition_ids := seen.partition_ids;
        starts := seen.starts;
        ends := seen.ends;
        all_ids := seen.all_ids;
        all_positions := seen.all_positions;
        RETURN NEXT;
        EXIT WHEN down_to IS NULL AND seen.all_ids IS NOT NULL;
        next_id := seen.parent;
    END LOOP;
END
$$;

-- penstock.source_heads(queue_names, queue_pattern, with_floors, reader, skip_missing)
--
-- Returns the heads of all partitions of some queues, with one or two index probes for each: a reader of whole queues
-- calls it to find new messages.
--
-- Parameters: queue_names - queues that must exist; or queue_pattern - a regular expression that matches the whole
-- name of a queue; with_floors - whether to return floors too; reader - a group whose private lanes are included;
-- skip_missing - whether a queue that does not exist is skipped instead of being an error.
-- Returns: one row of parallel arrays: partition ids, floors (0 unless with_floors), heads.
-- Calls: find_queue, partition_span, newest_segment. Tables: queues, consumer_groups, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.source_heads(
    queue_names text[], queue_pattern text DEFAULT NULL, with_floors boolean DEFAULT false, reader text DEFAULT NULL,
    skip_missing boolean DEFAULT false
)
RETURNS TABLE (partition_ids bigint[], floors bigint[], heads bigint[])
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    wanted integer[] := CASE
        WHEN queue_pattern IS NULL AND skip_missing THEN
            ARRAY(SELECT q.queue_id FROM penstock.queues q WHERE q.name = ANY (queue_names))
        WHEN queue_pattern IS NULL THEN ARRAY(SELECT DISTINCT penstock.find_queue(n) FROM unnest(queue_names) n)
        ELSE ARRAY(SELECT q.queue_id FROM penstock.queues q WHERE q.name ~ ('^(?:' || queue_pattern || ')$'))
    END;
    groups integer[] := ARRAY(
        SELECT g.group_id FROM penstock.consumer_groups g WHERE g.queue_id = ANY (wanted) AND g.name = reader
    );
BEGIN
    IF with_floors THEN
        RETURN QUERY
        SELECT array_agg(p.partition_id), array_agg(s.floor_offset), array_agg(s.head_offset)
        FROM unnest(wanted) w (queue_id)
        JOIN penstock.partitions p ON p.queue_id = w.queue_id AND (p.lane_of IS NULL OR p.lane_of = ANY (groups))
        CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT array_agg(p.partition_id), array_agg(0::bigint), array_agg(coalesce(s.head_offset, 0))
    FROM unnest(wanted) w (queue_id)
    JOIN penstock.partitions p ON p.queue_id = w.queue_id AND (p.lane_of IS NULL OR p.lane_of = ANY (groups))
    LEFT JOIN LATERAL penstock.newest_segment(p.partition_id) s ON true;
END
$$;

-- penstock.source_places(partition_ids)
--
-- Returns the names and positions of partitions.
--
-- Parameters: partition_ids.
-- Returns: a row for each that exists.
-- Calls: partition_span. Tables: queues, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.source_places(partition_ids bigint[])
RETURNS TABLE (partition_id bigint, queue_name text, partition_name text, floor_offset bigint, head_offset bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT
        w.partition_id, (SELECT q.name FROM penstock.queues q WHERE q.queue_id = p.queue_id), p.name,
        s.floor_offset, s.head_offset
    FROM unnest(partition_ids) w (partition_id)
    -- LIMIT: a plain join, planned for a small table, goes through all of it.
    CROSS JOIN LATERAL (
        SELECT p.queue_id, p.name FROM penstock.partitions p WHERE p.partition_id = w.partition_id LIMIT 1
    ) p
    CROSS JOIN LATERAL penstock.partition_span(w.partition_id) s
$$;

-- penstock.spend_bytes(partition_ids, starts, stops, max_bytes)
--
-- Shortens ranges so that each has at most max_bytes, but at least one message. Each message counts as the average of
-- its segment. Readers of versions before backlog_by_time call it.
--
-- Parameters: parallel arrays, one entry per range; max_bytes - for each of them.
-- Returns: a row per range, in the order given: its new end, and its approximate bytes.
-- Calls: partition_span. Tables: segments, archived (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.spend_bytes(
    partition_ids bigint[], starts bigint[], stops bigint[], max_bytes bigint
)
RETURNS TABLE (stop_offset bigint, bytes bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    segment record;
    first   bigint;
    taken   bigint;
    average float8;
BEGIN
    FOR i IN 1 .. coalesce(cardinality(partition_ids), 0) LOOP
        stop_offset := stops[i];
        bytes := 0;
        FOR segment IN
            -- Where the log begins later than the range, the archive comes before it.
            SELECT a.base_offset, a.count, a.bytes
            FROM penstock.partition_span(partition_ids[i]) p
            CROSS JOIN LATERAL (
                SELECT
                    a.start_offset AS base_offset, least(a.stop_offset, p.floor_offset) - a.start_offset AS count,
                    a.bytes * (least(a.stop_offset, p.floor_offset) - a.start_offset)
                        / (a.stop_offset - a.start_offset) AS bytes
                FROM penstock.archived a
                WHERE a.partition_id = partition_ids[i] AND starts[i] < p.floor_offset
                  AND a.start_offset < least(stops[i], p.floor_offset) AND a.stop_offset > starts[i]
                ORDER BY a.start_offset
            ) a
            UNION ALL
            (SELECT s.base_offset, s.count, s.bytes FROM penstock.segments s
            WHERE s.partition_id = partition_ids[i]
              AND s.base_offset >= coalesce((
                  SELECT f.base_offset FROM penstock.segments f
                  WHERE f.partition_id = partition_ids[i] AND f.base_offset <= starts[i]
                  ORDER BY f.base_offset DESC
                  LIMIT 1
              ), 0)
              AND s.base_offset < stops[i] AND s.base_offset + s.count > starts[i]
              -- Staged segments have negative partition ids and are not visible here.
              AND s.partition_id > 0
            ORDER BY s.base_offset)
        LOOP
            first := greatest(segment.base_offset, starts[i]);
            average := segment.bytes::float8 / segment.count;
            taken := least(segment.base_offset + segment.count, stops[i]) - first;
            IF bytes + average * taken > max_bytes THEN
                taken := least(taken, greatest(
                    floor((max_bytes - bytes) / greatest(average, 1))::bigint, (first = starts[i])::integer
                ));
                stop_offset := first + taken;
                bytes := bytes + (average * taken)::bigint;
                EXIT;
            END IF;
            bytes := bytes + (average * taken)::bigint;
        END LOOP;
        RETURN NEXT;
    END LOOP;
END
$$;

-- penstock.stage_segments(stage, first_ordinal, queue_names, partition_names, counts, body, ends, keys, key_ends,
--                         headers, header_ends)
--
-- Writes packed segments to a stage. The limits and the compression of the queue apply, as for a push. To call it
-- again with the same first_ordinal does nothing, so a caller whose connection broke may repeat the call.
--
-- The columns of all segments are concatenated in one value, which is cut here: an array of them would be copied
-- twice more, to disk if it is large, and would cost the caller an object per segment.
--
-- Parameters: first_ordinal - the number of segments that the stage has before these; queue_names, partition_names,
-- counts - one entry per segment; body, keys, headers - the columns of push_segment, one segment after the other;
-- ends, key_ends, header_ends - where each value ends, counted from 0 in every segment; if some values are null, a
-- byte per message follows all ends. A segment whose keys are all empty has none; the same for headers.
-- Returns: nothing; raises object_not_in_prerequisite_state if the stage was removed or published, and
-- insufficient_privilege if it belongs to another user.
-- Calls: lock_stage, require_names, require_packed, require_texts, texts_are_plain, column_starts, null_flags,
-- compresses, effective_settings. Tables: staged, segments (insert), queues (read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.stage_segments(
    stage           bigint,
    first_ordinal   bigint,
    queue_names     text[],
    partition_names text[],
    counts          integer[],
    body            bytea,
    ends            bytea,
    keys            bytea DEFAULT NULL,
    key_ends        bytea DEFAULT NULL,
    headers         bytea DEFAULT NULL,
    header_ends     bytea DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    known         text[] := ARRAY(SELECT DISTINCT n FROM unnest(queue_names) n);
    limits        integer[];
    compress      boolean[];
    -- Where each segment begins, and where the last one ends: in messages, and in bytes of each column.
    firsts        integer[] := 0 || counts;
    body_starts   integer[];
    key_starts    integer[];
    header_starts integer[];
    total         integer;
    nulls         bytea;
BEGIN
    IF (cardinality(queue_names) = ALL (ARRAY[cardinality(partition_names), cardinality(counts)])) IS NOT TRUE THEN
        RAISE EXCEPTION 'queue_names, partition_names and counts must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.lock_stage(stage);
    PERFORM penstock.require_names(VARIADIC known);
    PERFORM penstock.require_names(VARIADIC ARRAY(SELECT DISTINCT n FROM unnest(partition_names) n));
    INSERT INTO penstock.staged (stage_id, first_ordinal, queue_names, partition_names, counts)
    VALUES (
        stage, stage_segments.first_ordinal, stage_segments.queue_names, stage_segments.partition_names,
        stage_segments.counts
    )
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN; -- a call that is made again
    END IF;

    -- As one segment first: then what follows reads within the columns only.
    IF (1 <= ALL (counts) AND 1000000 >= ALL (counts)) IS NOT TRUE THEN
        RAISE EXCEPTION 'a segment must have 1 to 1000000 messages' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- A loop: the same with window functions takes three times as long.
    FOR nth IN 1..cardinality(counts) LOOP
        firsts[nth + 1] := firsts[nth] + counts[nth];
    END LOOP;
    total := firsts[cardinality(firsts)];
    nulls := penstock.null_flags(total, ends);
    IF (
        octet_length(ends) IN (4 * total, 5 * total) AND body IS NOT NULL
        AND (keys IS NULL) = (key_ends IS NULL) AND (headers IS NULL) = (header_ends IS NULL)
        AND coalesce(octet_length(key_ends), 4 * total) = 4 * total
        AND coalesce(octet_length(header_ends), 4 * total) = 4 * total
        AND coalesce(btrim(nulls, decode('0001', 'hex')), '') = ''
    ) IS NOT TRUE THEN
        RAISE EXCEPTION 'a packed column needs four bytes of ends for each message'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    body_starts := penstock.column_starts(firsts, body, ends);
    key_starts := penstock.column_starts(firsts, keys, key_ends);
    header_starts := penstock.column_starts(firsts, headers, header_ends);

    SELECT
        array_agg((q.settings ->> 'max_message_bytes')::integer ORDER BY k.position),
        array_agg(penstock.compresses(q.settings ->> 'compression') ORDER BY k.position)
    INTO limits, compress
    FROM unnest(known) WITH ORDINALITY k (name, position)
    CROSS JOIN LATERAL (
        SELECT coalesce(
            (SELECT q.settings FROM penstock.queues q WHERE q.name = k.name), penstock.effective_settings('{}')
        ) AS settings
    ) q;
    -- All keys and headers at once; only where something may be wrong, segment by segment.
    IF (keys IS NOT NULL OR headers IS NOT NULL) AND NOT penstock.texts_are_plain(keys, headers) THEN
        PERFORM penstock.require_texts(
            counts[nth],
            substring(keys FROM key_starts[nth] + 1 FOR key_starts[nth + 1] - key_starts[nth]),
            substring(key_ends FROM 4 * firsts[nth] + 1 FOR 4 * counts[nth]),
            substring(headers FROM header_starts[nth] + 1 FOR header_starts[nth + 1] - header_starts[nth]),
            substring(header_ends FROM 4 * firsts[nth] + 1 FOR 4 * counts[nth])
        )
        FROM generate_series(1, cardinality(counts)) nth;
    END IF;
    -- Only a segment that is over the limit as a whole can hold a message that is.
    PERFORM penstock.require_packed(
        s.queue_name, s.allowed, counts[s.nth], substring(body FROM body_starts[s.nth] + 1 FOR s.size),
        substring(ends FROM 4 * firsts[s.nth] + 1 FOR 4 * counts[s.nth]), NULL, NULL, NULL, NULL
    )
    FROM (
        SELECT
            u.queue_name, u.nth, limits[array_position(known, u.queue_name)] AS allowed,
            body_starts[u.nth + 1] - body_starts[u.nth] AS size
        FROM unnest(queue_names) WITH ORDINALITY u (queue_name, nth)
    ) s
    WHERE s.size > least(s.allowed, 67108864);
    IF coalesce(octet_length(keys), 0)::bigint + coalesce(octet_length(headers), 0) > 67108864 THEN
        RAISE EXCEPTION 'the keys and headers that are staged at once may have 67108864 bytes'
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Stage fewer messages at once.';
    END IF;
    INSERT INTO penstock.segments (
        partition_id, base_offset, created_at, count, bytes,
        body, body_compressed, ends, keys, key_ends, headers, header_ends
    )
    SELECT
        -stage, stage_segments.first_ordinal + s.nth - 1, clock_timestamp(), s.count,
        s.body_size + s.key_size + s.header_size,
        CASE WHEN NOT c.compressed THEN substring(stage_segments.body FROM s.body_start FOR s.body_size) END,
        CASE WHEN c.compressed THEN substring(stage_segments.body FROM s.body_start FOR s.body_size) END,
        CASE WHEN position(decode('01', 'hex') IN n.flags) > 0
            THEN substring(stage_segments.ends FROM s.first + 1 FOR 4 * s.count) || n.flags
            ELSE substring(stage_segments.ends FROM s.first + 1 FOR 4 * s.count)
        END,
        CASE WHEN s.key_size > 0 THEN substring(stage_segments.keys FROM key_starts[s.nth] + 1 FOR s.key_size) END,
        CASE WHEN s.key_size > 0 THEN substring(stage_segments.key_ends FROM s.first + 1 FOR 4 * s.count) END,
        CASE WHEN s.header_size > 0 THEN
            substring(stage_segments.headers FROM header_starts[s.nth] + 1 FOR s.header_size)
        END,
        CASE WHEN s.header_size > 0 THEN substring(stage_segments.header_ends FROM s.first + 1 FOR 4 * s.count) END
    FROM (
        SELECT
            u.queue_name, u.count, u.nth, 4 * firsts[u.nth] AS first, body_starts[u.nth] + 1 AS body_start,
            body_starts[u.nth + 1] - body_starts[u.nth] AS body_size,
            coalesce(key_starts[u.nth + 1] - key_starts[u.nth], 0) AS key_size,
            coalesce(header_starts[u.nth + 1] - header_starts[u.nth], 0) AS header_size
        FROM unnest(queue_names, counts) WITH ORDINALITY u (queue_name, count, nth)
    ) s
    CROSS JOIN LATERAL (SELECT compress[array_position(known, s.queue_name)] AS compressed) c
    CROSS JOIN LATERAL (SELECT substring(nulls FROM firsts[s.nth] + 1 FOR s.count) AS flags) n;
END
$$;

-- penstock.sweep_stages(older_than)
--
-- Removes what Spark jobs left behind: stages that were not written to for older_than, old rows of published epochs,
-- of the sources of epochs and of poison messages, and the snapshots of queries that have not run for 90 days. A job
-- that takes longer than this between writing and committing fails when it commits, and publishes nothing. The newest
-- epoch of a streaming query is kept. Maintenance calls it.
--
-- Parameters: older_than - the age of a stage.
-- Returns: the number of stages removed.
-- Calls: remove_stages. Tables: stages, staged (read), sink_commits, sink_runs, epoch_sources, poison, snapshots,
-- deleted_partitions (delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.sweep_stages(older_than interval DEFAULT interval '1 day')
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    removed integer;
BEGIN
    removed := penstock.remove_stages(ARRAY(
        SELECT s.stage_id FROM penstock.stages s
        WHERE greatest(s.created_at, (SELECT max(d.staged_at) FROM penstock.staged d WHERE d.stage_id = s.stage_id))
            < clock_timestamp() - older_than
        ORDER BY s.stage_id
        LIMIT 1000
    ));
    DELETE FROM penstock.epoch_sources e WHERE e.noted_at < clock_timestamp() - greatest(older_than, interval '1 day');
    -- A batch write has one epoch, and nobody comes back for it after so long.
    WITH gone AS (
        DELETE FROM penstock.sink_commits c
        WHERE c.published_at < clock_timestamp() - interval '30 days' AND c.writer = c.run
        RETURNING c.writer
    )
    DELETE FROM penstock.sink_runs r USING gone g WHERE r.writer = g.writer;
    -- A query that runs keeps its newest one (keep_snapshot), also while there is nothing to read.
    DELETE FROM penstock.snapshots s
    USING (
        SELECT n.lineage FROM penstock.snapshots n
        GROUP BY n.lineage
        HAVING max(n.created_at) < clock_timestamp() - interval '90 days'
        LIMIT 100
    ) old
    WHERE s.lineage = old.lineage;
    -- Its dead letters were published long ago, and no checkpoint goes back so far.
    DELETE FROM penstock.poison p WHERE p.found_at < clock_timestamp() - interval '30 days';
    DELETE FROM penstock.deleted_partitions d WHERE d.deleted_at < clock_timestamp() - interval '30 days';
    RETURN removed;
END
$$;

-- penstock.list_failing_timers()
--
-- Lists the timers that failed and were postponed, the first to fail first.
--
-- Returns: a row per timer: its kind (see serve_timer; 'maintenance' of a partition is tried with every pass, 'sweep'
-- is the sweep as a whole), its queue, group, partition and place if it has them, since when and how often it failed,
-- when it is tried again, and the error.
-- Calls: nothing. Tables: failing_timers, consumer_groups, partitions, queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_failing_timers()
RETURNS TABLE (
    kind text, queue_name text, group_name text, partition_name text, place bigint,
    since timestamptz, failures integer, retry_at timestamptz, sqlstate text, error text
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        f.kind, q.name, g.name, p.name, nullif(f.place, 0), f.since, f.failures, f.retry_at, f.sqlstate, f.error
    FROM penstock.failing_timers f
    LEFT JOIN penstock.consumer_groups g ON g.group_id = f.group_id
    LEFT JOIN penstock.partitions p ON p.partition_id = f.partition_id
    LEFT JOIN penstock.queues q ON q.queue_id = coalesce(p.queue_id, g.queue_id)
    ORDER BY f.since, f.kind, f.place
$$;

-- penstock.sweep(max_rows, since, durable)
--
-- Fires due timers: ends claims whose lease has expired, wakes partitions whose delay, backoff or quiet period is
-- over, checks parked ones once more, gives scheduled messages their offsets, fires late wake-ups, enrols partitions
-- in new groups, and trims the journal. Every consumer calls it now and then, in a transaction of its own; one sweep
-- works at a time, and the others return at once. It never waits for a lock, so an open transaction cannot stop the
-- timers. If nothing is due it writes nothing.
--
-- A timer that fails does not hold up others. If the sweep fails as a whole, nothing of it has happened, and each
-- timer is fired separately. A timer that fails is postponed, longer each time (failing_timers); list_failing_timers
-- and `penstock doctor` show it.
--
-- Parameters: max_rows - the largest number of timers to fire; it takes about two seconds at most; since - timers
-- that were due before are left alone. Fired timers leave dead index entries, which cannot be removed while somebody
-- holds a transaction open; a frequent caller passes swept_to of the last sweep, and every few seconds the default,
-- for timers that were locked or committed late; durable - false commits the caller's transaction without waiting for
-- the disk, unless scheduled messages were published: any other timer that a crash undoes is due once more. Only for a
-- caller who does nothing else in the transaction.
-- Returns: what was done; when the next timer is due, if within ten seconds; and where the next sweep may begin, null
-- if this one did not get to the end. No row while another sweep is working.
-- Calls: require_read_committed, sweep_together, sweep_apart, retry_timers, put_off. Tables: sweep_lock (lock),
-- failing_timers (read, delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.sweep(
    max_rows integer DEFAULT 1000, since timestamptz DEFAULT '-infinity', durable boolean DEFAULT true
)
RETURNS TABLE (woken integer, trimmed integer, enrolled integer, next_due timestamptz, swept_to timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    passing boolean;
    problem text;
    state   text;
    apart   record;
BEGIN
    IF (max_rows > 0) IS NOT TRUE OR since IS NULL THEN
        RAISE EXCEPTION 'max_rows is % and must be above 0; since is % and must not be null', max_rows, since
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    BEGIN
        -- A table that only the owner can lock, in a mode that conflicts with itself alone and leaves no trace.
        LOCK TABLE penstock.sweep_lock IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN;
    END;
    PERFORM penstock.require_read_committed('sweep');
    passing := EXISTS (SELECT 1 FROM penstock.failing_timers f WHERE f.kind <> 'maintenance');
    BEGIN
        SELECT t.* INTO woken, trimmed, enrolled, next_due, swept_to
        FROM penstock.sweep_together(max_rows, since, passing, durable) t;
        IF passing THEN
            DELETE FROM penstock.failing_timers f WHERE f.kind = 'sweep';
        END IF;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
    END;
    IF problem IS NOT NULL THEN
        SELECT a.* INTO apart FROM penstock.sweep_apart(max_rows, since) a;
        woken := apart.woken;
        trimmed := 0;
        enrolled := 0;
        next_due := NULL;
        swept_to := NULL;
        IF apart.failed = 0 THEN
            -- No single timer fails, so the failure is recorded as that of the sweep.
            PERFORM penstock.put_off('sweep', 0, 0, 0, state, problem);
        END IF;
    END IF;
    IF passing THEN
        woken := woken + penstock.retry_timers(max_rows);
    END IF;
    IF passing OR problem IS NOT NULL THEN
        next_due := least(next_due, (
            SELECT min(f.retry_at) FROM penstock.failing_timers f WHERE f.kind NOT IN ('sweep', 'maintenance')
        ));
    END IF;
    RETURN NEXT;
END
$$;

-- penstock.archive_bound(target, settings)
--
-- Returns up to which offset retention may drop a partition with regard to the archive. A queue that was never
-- archived does not wait for an archive unless its setting keep_until_archived is on, and none does if that is off.
-- Private lanes are never archived and never wait.
--
-- Parameters: target - the partition; settings - its queue's.
-- Returns: the offset; the largest bigint if nothing waits.
-- Calls: archived_to. Tables: partitions, archives (read).
CREATE OR REPLACE FUNCTION penstock.archive_bound(target bigint, settings jsonb)
RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN p.lane_of IS NULL AND CASE settings ->> 'keep_until_archived'
            WHEN 'on' THEN true
            WHEN 'off' THEN false
            ELSE EXISTS (SELECT 1 FROM penstock.archives a WHERE a.queue_id = p.queue_id)
        END THEN penstock.archived_to(target)
        ELSE 9223372036854775807
    END
    FROM penstock.partitions p
    WHERE p.partition_id = target
$$;

-- penstock.archived_to(target)
--
-- Returns the offset up to which a partition is archived. The next archive begins there.
--
-- Parameters: target - the partition.
-- Returns: the offset; 0 if nothing is archived.
-- Calls: nothing. Tables: archived (read).
CREATE OR REPLACE FUNCTION penstock.archived_to(target bigint)
RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT coalesce((
        SELECT a.stop_offset FROM penstock.archived a
        WHERE a.partition_id = target
        ORDER BY a.start_offset DESC
        LIMIT 1
    ), 0)
$$;

-- penstock.checked_config(old, changes)
--
-- Applies changes to a configuration: a value sets, a JSON null resets to the default, and the alias window_buffer
-- means quiet_period.
--
-- Parameters: old - the configuration so far; changes - the changes requested.
-- Returns: the new configuration; raises invalid_parameter_value if it is not valid.
-- Calls: settings_problem, settings. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.checked_config(old jsonb, changes jsonb)
RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    wanted  jsonb := changes;
    problem text;
BEGIN
    IF jsonb_typeof(wanted) = 'object' AND wanted ? 'window_buffer' THEN
        IF wanted ? 'quiet_period' THEN
            RAISE EXCEPTION 'window_buffer is another name of quiet_period: give only one of them'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        wanted := wanted - 'window_buffer' || jsonb_build_object('quiet_period', wanted -> 'window_buffer');
    END IF;
    IF wanted IS NULL OR jsonb_typeof(wanted) <> 'object' THEN
        problem := penstock.settings_problem(wanted);
    ELSE
        -- Reset to default: unknown names are still refused, so they are looked at with a value in place of null.
        problem := coalesce(
            penstock.settings_problem(jsonb_strip_nulls(wanted)),
            penstock.settings_problem(coalesce((
                SELECT jsonb_object_agg(e.key, coalesce(
                    (SELECT s.default_value FROM penstock.settings() s WHERE s.name = e.key), '0'
                ))
                FROM jsonb_each(wanted) e WHERE e.value = 'null'
            ), '{}'))
        );
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN jsonb_strip_nulls(old || wanted);
END
$$;

-- penstock.effective_settings(config)
--
-- Fills in the default of every setting that a queue's configuration leaves out.
--
-- Parameters: config - the settings that were set.
-- Returns: all settings as one JSON object.
-- Calls: settings. Tables: none.
CREATE OR REPLACE FUNCTION penstock.effective_settings(config jsonb)
RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT jsonb_object_agg(s.name, s.default_value) || config FROM penstock.settings() s
$$;

-- penstock.find_group(queue_name, group_name)
--
-- Looks up a group that must exist.
--
-- Parameters: the names.
-- Returns: the group's id; raises undefined_object and says which of the two does not exist.
-- Calls: find_queue. Tables: consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.find_group(queue_name text, group_name text)
RETURNS integer
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
DECLARE
    queue integer := penstock.find_queue(queue_name);
    found integer := (
        SELECT g.group_id FROM penstock.consumer_groups g WHERE g.queue_id = queue AND g.name = group_name
    );
BEGIN
    IF found IS NULL THEN
        RAISE EXCEPTION 'queue "%" has no group "%"', queue_name, group_name
            USING ERRCODE = 'undefined_object',
                  HINT = 'Pop with it or create it first; "penstock groups" lists those there are.';
    END IF;
    RETURN found;
END
$$;

-- penstock.find_partition(queue_name, partition_name)
--
-- Looks up a partition that must exist.
--
-- Parameters: the names.
-- Returns: the partition's id; raises undefined_object and says which of the two does not exist.
-- Calls: find_queue. Tables: partitions (read).
CREATE OR REPLACE FUNCTION penstock.find_partition(queue_name text, partition_name text)
RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
DECLARE
    queue integer := penstock.find_queue(queue_name);
    found bigint := (
        SELECT p.partition_id FROM penstock.partitions p WHERE p.queue_id = queue AND p.name = partition_name
    );
BEGIN
    IF found IS NULL THEN
        RAISE EXCEPTION 'queue "%" has no partition "%"', queue_name, partition_name
            USING ERRCODE = 'undefined_object',
                  HINT = 'Push to it or create it first; "penstock partitions" lists those there are.';
    END IF;
    RETURN found;
END
$$;

-- penstock.find_queue(queue_name)
--
-- Looks up a queue that must exist.
--
-- Parameters: the name.
-- Returns: the queue's id; raises undefined_object.
-- Calls: nothing. Tables: queues (read).
CREATE OR REPLACE FUNCTION penstock.find_queue(queue_name text)
RETURNS integer
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
DECLARE
    found integer := (SELECT q.queue_id FROM penstock.queues q WHERE q.name = queue_name);
BEGIN
    IF found IS NULL THEN
        RAISE EXCEPTION 'there is no queue "%"', queue_name
            USING ERRCODE = 'undefined_object',
                  HINT = 'Push to it or create it first; "penstock queues" lists those there are.';
    END IF;
    RETURN found;
END
$$;

-- penstock.group_settings_problem(config)
--
-- Checks the configuration of a group. A group can override those settings of its queue that concern consuming.
--
-- Parameters: config - the settings, as a JSON object.
-- Returns: the first problem, as an error text, or null.
-- Calls: settings_problem. Tables: none.
CREATE OR REPLACE FUNCTION penstock.group_settings_problem(config jsonb)
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    known   text[] := ARRAY['lease_time', 'max_attempts', 'backoff_initial', 'backoff_factor', 'backoff_max',
                            'delay', 'quiet_period', 'durable_acks'];
    unknown text;
BEGIN
    IF config IS NULL OR jsonb_typeof(config) <> 'object' THEN
        RETURN 'the configuration must be a JSON object';
    END IF;
    SELECT k INTO unknown FROM jsonb_object_keys(config) k WHERE k <> ALL (known) ORDER BY k LIMIT 1;
    IF FOUND THEN
        RETURN format('unknown setting %s of a group; the known ones are %s',
                      to_json(unknown), array_to_string(known, ', '));
    END IF;
    RETURN penstock.settings_problem(config);
END
$$;

-- penstock.is_admin()
--
-- Returns whether the session user may do what admins may: a member of penstock_admin, or of the schema's owner. The
-- session user decides, because a SECURITY DEFINER function runs as its owner and cannot see its caller.
--
-- Parameters: none.
-- Returns: whether.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.is_admin()
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT 1 FROM pg_roles r
        WHERE (r.rolname = 'penstock_admin' OR r.oid = (
            SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'penstock'
        )) AND pg_has_role(session_user, r.oid, 'MEMBER')
    )
$$;

-- penstock.lock_queue(queue)
--
-- Takes a queue's exclusive lock, after all pushes in progress have ended. A waiting exclusive lock blocks all later
-- pushes, so this waits in short periods with pauses between them: an open transaction delays the caller, and not the
-- queue.
--
-- Parameters: queue - the queue's id.
-- Returns: nothing; raises lock_not_available after the caller's lock_timeout.
-- Calls: queue_lock_class. Tables: none.
CREATE OR REPLACE FUNCTION penstock.lock_queue(queue integer)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    allowed  text := current_setting('lock_timeout');
    deadline timestamptz := CASE WHEN allowed = '0' THEN 'infinity' ELSE clock_timestamp() + allowed::interval END;
BEGIN
    LOOP
        BEGIN
            PERFORM set_config('lock_timeout', '100ms', true);
            PERFORM pg_advisory_xact_lock(penstock.queue_lock_class(), queue);
            PERFORM set_config('lock_timeout', allowed, true);
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            IF clock_timestamp() > deadline THEN
                RAISE EXCEPTION 'a push to this queue has been in progress for longer than %', allowed
                    USING ERRCODE = 'lock_not_available';
            END IF;
        END;
        PERFORM pg_sleep(0.1);
    END LOOP;
END
$$;

-- penstock.name_problem(name)
--
-- Checks the name of a queue or a partition.
--
-- Parameters: name - 1 to 255 bytes without control characters (U+0000 to U+001F and U+007F to U+009F, in every
-- locale); '*' means any partition and is no name, and a leading '~' is reserved for private lanes.
-- Returns: the problem, as an error text, or null.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.name_problem(name text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN name IS NULL THEN 'a name is missing'
        WHEN octet_length(name) NOT BETWEEN 1 AND 255 THEN
            format('a name must have 1 to 255 bytes and this one has %s', octet_length(name))
        WHEN name ~ '[\u0001-\u001f\u007f-\u009f]' THEN
            format('a name must have no control characters and %s has some', to_json(name))
        WHEN name LIKE '~%' THEN 'names that begin with "~" are kept for private lanes'
        WHEN name = '*' THEN 'the name "*" means any partition and cannot be given to one'
    END
$$;

-- penstock.queue_lock_class()
--
-- Returns the first key of the advisory locks on queues. The first keys of all advisory locks of penstock:
--
-- 1885695603 - a queue (second key: its id). Shared by whoever pushes or adds partitions, exclusive for whoever deletes
-- the queue. With 0 as second key: maintenance.
-- 1885695604 - publishing for a writer (second key: a hash of the writer's name); publish_stages.
-- 1885695605 - a run of `penstock archive` (second key: the queue's id); begin_archive.
--
-- Parameters: none.
-- Returns: a constant.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.queue_lock_class()
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT 1885695603
$$;

-- penstock.refuse_first_use(queue_names, group_name)
--
-- Raises an error if queues or a group do not exist and the database does not create them on first use.
--
-- Parameters: queue_names - queues that are about to be used; group_name - a group of theirs, or null.
-- Returns: nothing; raises undefined_object.
-- Calls: nothing. Tables: database_settings, queues, consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.refuse_first_use(queue_names text[], group_name text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    missing text;
BEGIN
    IF coalesce((SELECT d.create_on_first_use FROM penstock.database_settings d), true) THEN
        RETURN;
    END IF;
    SELECT w.name INTO missing FROM unnest(queue_names) w (name)
    WHERE NOT EXISTS (SELECT 1 FROM penstock.queues q WHERE q.name = w.name)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'there is no queue "%", and this database creates none on first use', missing
            USING ERRCODE = 'undefined_object',
                  HINT = 'Create it with "penstock create" or create_queue; "penstock queues" lists those there are.';
    END IF;
    SELECT q.name INTO missing FROM penstock.queues q
    WHERE group_name IS NOT NULL AND q.name = ANY (queue_names) AND NOT EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.queue_id = q.queue_id AND g.name = group_name
    )
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'queue "%" has no group "%", and this database creates none on first use', missing, group_name
            USING ERRCODE = 'undefined_object',
                  HINT = 'Create it with "penstock group create" or create_group; "penstock groups" lists those there are.';
    END IF;
END
$$;

-- penstock.require_names(names)
--
-- Raises an error if a name is not valid for a queue or partition.
--
-- Parameters: names - names of queues or partitions.
-- Returns: nothing; raises invalid_parameter_value.
-- Calls: name_problem. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_names(VARIADIC names text[])
RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    problem text;
BEGIN
    -- What name_problem would look at name by name, at 5 µs each: it is asked only where there is something to find.
    IF array_to_string(names, '') !~ '[\u0001-\u001f\u007f-\u009f]' AND NOT EXISTS (
        SELECT 1 FROM unnest(names) n
        WHERE n IS NULL OR octet_length(n) NOT BETWEEN 1 AND 255 OR n LIKE '~%' OR n = '*'
    ) THEN
        RETURN;
    END IF;
    SELECT penstock.name_problem(n) INTO problem
    FROM unnest(names) n
    WHERE penstock.name_problem(n) IS NOT NULL
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

-- penstock.require_read_committed(caller)
--
-- Raises an error unless the transaction is READ COMMITTED. Above that a statement does not see what was committed
-- after the first statement of the transaction, so the state of a group that it sees may be out of date.
--
-- Parameters: caller - the function to name in the error.
-- Returns: nothing; raises active_sql_transaction.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_read_committed(caller text)
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'penstock.% needs a READ COMMITTED transaction, and this one is %',
            caller, upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'active_sql_transaction',
                  HINT = 'Consume in a transaction of its own, or set the isolation level to READ COMMITTED.';
    END IF;
END
$$;

-- penstock.require_texts(count, keys, key_ends, headers, header_ends)
--
-- Raises an error if a key is not text or if headers are not a JSON object of strings: they could not be shown in
-- SQL. It checks each message; callers use texts_are_plain first.
--
-- Parameters: packed columns, null where unused.
-- Returns: nothing; raises invalid_parameter_value with the position of the message.
-- Calls: decoded_key, decoded_headers, int32_at. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_texts(
    count integer, keys bytea, key_ends bytea, headers bytea, header_ends bytea
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    key_from    integer := 0;
    key_to      integer;
    header_from integer := 0;
    header_to   integer;
    packed      bytea;
BEGIN
    FOR i IN 0 .. count - 1 LOOP
        key_to := least(greatest(penstock.int32_at(key_ends, i), key_from), octet_length(keys));
        header_to := least(greatest(penstock.int32_at(header_ends, i), header_from), octet_length(headers));
        IF key_to > key_from THEN
            packed := substring(keys FROM key_from + 1 FOR key_to - key_from);
            IF penstock.decoded_key(packed) IS NULL THEN
                RAISE EXCEPTION 'the key of message % is not UTF-8 text, or holds a NUL: %',
                    i + 1, left(encode(packed, 'escape'), 200)
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Nothing was changed. Encode such a key first.';
            END IF;
        END IF;
        IF header_to > header_from THEN
            packed := substring(headers FROM header_from + 1 FOR header_to - header_from);
            IF penstock.decoded_headers(packed) IS NULL THEN
                RAISE EXCEPTION 'the headers of message % are not a JSON object of strings that jsonb can hold: %',
                    i + 1, left(encode(packed, 'escape'), 200)
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Nothing was changed. jsonb holds no \u0000.';
            END IF;
        END IF;
        key_from := key_to;
        header_from := header_to;
    END LOOP;
END
$$;

-- penstock.settings_problem(config)
--
-- Checks the configuration of a queue.
--
-- Parameters: config - the settings, as a JSON object.
-- Returns: the first problem, as an error text, or null.
-- Calls: settings. Tables: none.
CREATE OR REPLACE FUNCTION penstock.settings_problem(config jsonb)
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    given   record;
    setting record;
    number  numeric;
BEGIN
    IF config IS NULL OR jsonb_typeof(config) <> 'object' THEN
        RETURN 'the configuration must be a JSON object';
    END IF;
    FOR given IN SELECT e.key, e.value FROM jsonb_each(config) e ORDER BY e.key LOOP
        SELECT s.* INTO setting FROM penstock.settings() s WHERE s.name = given.key;
        IF NOT FOUND THEN
            RETURN format(
                'unknown setting %s; the known ones are %s',
                to_json(given.key),
                (SELECT string_agg(s.name, ', ') FROM penstock.settings() s)
            );
        END IF;
        CONTINUE WHEN given.value = 'null' AND setting.kind LIKE '%or null';
        IF setting.kind = 'choice' THEN
            IF jsonb_typeof(given.value) <> 'string' OR given.value #>> '{}' <> ALL (setting.choices) THEN
                RETURN format(
                    'setting %s is %s but must be one of %s',
                    given.key, given.value, array_to_string(setting.choices, ', ')
                );
            END IF;
            CONTINUE;
        END IF;
        IF setting.kind = 'boolean' THEN
            IF jsonb_typeof(given.value) <> 'boolean' THEN
                RETURN format('setting %s is %s but must be true or false', given.key, given.value);
            END IF;
            CONTINUE;
        END IF;
        IF jsonb_typeof(given.value) <> 'number' THEN
            RETURN format('setting %s is %s but must be a number (%s)', given.key, given.value, setting.kind);
        END IF;
        number := (given.value #>> '{}')::numeric;
        IF number NOT BETWEEN setting.minimum AND setting.maximum THEN
            RETURN format(
                'setting %s is %s but must be from %s to %s',
                given.key, number, setting.minimum, setting.maximum
            );
        END IF;
        IF setting.kind LIKE 'count%' AND number <> trunc(number) THEN
            RETURN format('setting %s is %s but must be a whole number', given.key, number);
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- penstock.texts_are_plain(keys, headers)
--
-- Checks the keys and headers of a whole batch at once, quickly.
--
-- Parameters: keys, headers - packed columns, null where unused.
-- Returns: whether all keys are text and all headers JSON objects of strings. False does not mean that one is wrong:
-- spaces and escapes such as \u0041 are not recognised here, and require_texts checks each message.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.texts_are_plain(keys bytea, headers bytea)
RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    said text;
BEGIN
    said := convert_from(keys, 'UTF8');
    -- A regular expression, because it takes a fourth of the time that reading them as jsonb does.
    RETURN coalesce(convert_from(headers, 'UTF8') COLLATE "C" ~ (
        '^(?:\{(?:"(?:[^"\\\x01-\x1f]|\\["\\/bfnrt])*":"(?:[^"\\\x01-\x1f]|\\["\\/bfnrt])*"'
        '(?:,"(?:[^"\\\x01-\x1f]|\\["\\/bfnrt])*":"(?:[^"\\\x01-\x1f]|\\["\\/bfnrt])*")*)?\})*$'
    ), true);
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN false;
END
$$;

-- penstock.use_lock_timeout()
--
-- Applies the caller's lock timeout: SET penstock.lock_timeout = '2s'. The calling function declares SET lock_timeout
-- itself, so the caller's own value is restored when it returns.
--
-- Returns: nothing.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.use_lock_timeout()
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF current_setting('penstock.lock_timeout', true) <> '' THEN
        PERFORM set_config('lock_timeout', current_setting('penstock.lock_timeout'), true);
    END IF;
END
$$;

-- penstock.bury_staged(stage_ids)
--
-- Makes dead letters of staged messages, each with a copy of the message: the one that a task staged with it, or else
-- the one in the log. A message that retention has dropped, and of which there is no copy, leaves no dead letter.
--
-- Parameters: stage_ids - whose rows of staged_dead_letters; if a message is staged several times, the first one
-- counts, with all the rows that it failed with.
-- Returns: the number of dead letters.
-- Calls: segment_slices, unpack. Tables: staged_dead_letters, partitions, consumer_groups (read), dead_letters
-- (insert).
CREATE OR REPLACE FUNCTION penstock.bury_staged(stage_ids bigint[])
RETURNS bigint
LANGUAGE sql
AS $$
    WITH buried AS (
        INSERT INTO penstock.dead_letters (
            queue_id, group_id, partition_id, message_offset, created_at, payload, key, headers,
            reason, attempts, first_error, last_error, consumer, row_ids
        )
        SELECT
            p.queue_id, l.group_id, l.partition_id, l.message_offset, coalesce(l.created_at, m.message_time),
            CASE WHEN l.created_at IS NULL THEN m.payload ELSE l.payload END,
            CASE WHEN l.created_at IS NULL THEN m.message_key ELSE l.key END,
            CASE WHEN l.created_at IS NULL THEN m.message_headers ELSE l.headers END,
            l.reason, 1, l.error, l.error, g.name, w.row_ids
        FROM (
            SELECT DISTINCT ON (d.partition_id, d.message_offset) d.*
            FROM penstock.staged_dead_letters d
            WHERE d.stage_id = ANY (bury_staged.stage_ids)
            ORDER BY d.partition_id, d.message_offset, d.of_source DESC, abs(d.stage_id)
        ) l
        CROSS JOIN LATERAL (
            SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = l.partition_id LIMIT 1
        ) p
        JOIN penstock.consumer_groups g ON g.group_id = l.group_id
        CROSS JOIN LATERAL (
            SELECT array_agg(DISTINCT r) AS row_ids
            FROM penstock.staged_dead_letters d
            CROSS JOIN LATERAL unnest(d.row_ids) r
            WHERE d.stage_id = ANY (bury_staged.stage_ids) AND d.partition_id = l.partition_id
              AND d.message_offset = l.message_offset
        ) w
        LEFT JOIN LATERAL (
            SELECT m.*
            FROM penstock.segment_slices(l.partition_id, l.message_offset, l.message_offset + 1) s
            CROSS JOIN LATERAL penstock.unpack(
                l.partition_id, s.base_offset, s.count, s.created_at, s.run_skip, s.run_counts, s.run_times,
                s.body_start, s.body, s.ends, s.key_start, s.keys, s.key_ends, s.header_start, s.headers, s.header_ends
            ) m
            WHERE l.created_at IS NULL
        ) m ON true
        -- Not the payload, which may be null: every message has a time.
        WHERE coalesce(l.created_at, m.message_time) IS NOT NULL
        ORDER BY l.partition_id, l.message_offset
        RETURNING 1
    )
    SELECT count(*) FROM buried
$$;

-- penstock.ack_mixed(group_ids, partition_ids, lease_ids, starts, stops)
--
-- Acknowledges claims of which some or all are of shared groups; see ack_claims.
--
-- Parameters: as in ack_claims.
-- Returns: for each entry, in the order given, whether it was acknowledged.
-- Calls: ack_shared, ack_claims. Tables: consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.ack_mixed(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], starts bigint[], stops bigint[]
)
RETURNS boolean[]
LANGUAGE plpgsql
AS $$
DECLARE
    part    record;
    answers boolean[];
    acked   boolean[];
BEGIN
    -- Ordered groups first: all callers take the locks in the same order.
    FOR part IN
        SELECT
            coalesce(g.mode = 'shared', false) AS shared,
            array_agg(u.position ORDER BY u.position) AS positions,
            array_agg(u.group_id ORDER BY u.position) AS group_ids,
            array_agg(u.partition_id ORDER BY u.position) AS partition_ids,
            array_agg(u.lease_id ORDER BY u.position) AS lease_ids,
            array_agg(u.start ORDER BY u.position) AS starts,
            array_agg(u.stop ORDER BY u.position) AS stops
        FROM unnest(group_ids, partition_ids, lease_ids, starts, stops) WITH ORDINALITY
            u (group_id, partition_id, lease_id, start, stop, position)
        LEFT JOIN penstock.consumer_groups g ON g.group_id = u.group_id
        GROUP BY 1
        ORDER BY 1
    LOOP
        IF part.shared THEN
            answers := penstock.ack_shared(
                part.group_ids, part.partition_ids, part.lease_ids, part.starts, part.stops
            );
        ELSE
            answers := penstock.ack_claims(
                part.group_ids, part.partition_ids, part.lease_ids, part.starts, part.stops
            );
        END IF;
        FOR i IN 1 .. cardinality(answers) LOOP
            acked[part.positions[i]] := answers[i];
        END LOOP;
    END LOOP;
    RETURN acked;
END
$$;

-- penstock.ack_shared(group_ids, partition_ids, lease_ids, starts, stops)
--
-- Acknowledges messages of claims of shared groups; see ack_claims. What is left of a claim stays under its lease.
--
-- Parameters: as in ack_claims.
-- Returns: for each entry, in the order given, whether it was acknowledged.
-- Calls: lock_leases. Tables: claims (read, delete, insert).
CREATE OR REPLACE FUNCTION penstock.ack_shared(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], starts bigint[], stops bigint[]
)
RETURNS boolean[]
LANGUAGE plpgsql
AS $$
DECLARE
    wanted record;
    held   penstock.claims;
    done   bigint;
    acked  boolean[] := '{}';
BEGIN
    PERFORM penstock.lock_leases(group_ids, partition_ids, lease_ids);
    FOR wanted IN
        SELECT
            u.group_id, u.partition_id, u.lease_id,
            coalesce(u.start, 0) AS lo, coalesce(u.stop, 9223372036854775807) AS hi
        FROM unnest(group_ids, partition_ids, lease_ids, starts, stops) WITH ORDINALITY
            u (group_id, partition_id, lease_id, start, stop, position)
        ORDER BY u.position
    LOOP
        done := 0;
        FOR held IN
            DELETE FROM penstock.claims c
            WHERE c.group_id = wanted.group_id AND c.partition_id = wanted.partition_id
              AND c.lease_id = wanted.lease_id AND c.due_at > clock_timestamp()
              AND c.lo < wanted.hi AND c.hi > wanted.lo
            RETURNING c.*
        LOOP
            done := done + least(held.hi, wanted.hi) - greatest(held.lo, wanted.lo);
            INSERT INTO penstock.claims (
                group_id, partition_id, lo, hi, attempt, lease_id, due_at, consumer, claimed_at, first_error, last_error,
                whole
            )
            SELECT held.group_id, held.partition_id, rest.lo, rest.hi, held.attempt, held.lease_id, held.due_at,
                   held.consumer, held.claimed_at, held.first_error, held.last_error, false
            FROM (VALUES (held.lo, wanted.lo), (wanted.hi, held.hi)) rest (lo, hi)
            WHERE rest.lo < rest.hi;
        END LOOP;
        IF done > 0 THEN
            acked := acked || true;
            CONTINUE;
        END IF;
        -- What is done already is acknowledged once more, as long as something of the claim is held.
        acked := acked || coalesce((
            SELECT bool_and(wanted.lo = wanted.hi OR c.lo >= wanted.hi OR c.hi <= wanted.lo) FROM penstock.claims c
            WHERE c.group_id = wanted.group_id AND c.partition_id = wanted.partition_id
              AND c.lease_id = wanted.lease_id AND c.due_at > clock_timestamp()
        ), false);
    END LOOP;
    RETURN acked;
END
$$;

-- penstock.append_state(before, next_state, committed, attempt, narrow_attempt, narrow_to, due_at, first_error,
--                       last_error)
--
-- Appends the next journal row of a (group, partition) that nobody holds any more, and the ready list entry where the
-- new state is ready. The caller is the one who may (see the table of owners in docs/design.md).
--
-- Functions that append many rows, or one for every pop or ack, insert them themselves: pop_claims, claim_partition,
-- ack_claims, renew_ordered, wake_partitions, advance_reader.
--
-- Parameters: before - the newest row; the others - what the new row says.
-- Returns: nothing.
-- Calls: nothing. Tables: journal, ready (insert), partitions (read).
CREATE OR REPLACE FUNCTION penstock.append_state(
    before         penstock.journal,
    next_state     "char",
    committed      bigint,
    attempt        smallint    DEFAULT 0,
    narrow_attempt smallint    DEFAULT 0,
    narrow_to      bigint      DEFAULT NULL,
    due_at         timestamptz DEFAULT NULL,
    first_error    text        DEFAULT NULL,
    last_error     text        DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    entry bigint := CASE WHEN next_state = 'r' THEN nextval('penstock.ready_seq') END;
BEGIN
    INSERT INTO penstock.journal (
        group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
        ready_seq, due_at, acked_at, first_error, last_error
    ) VALUES (
        before.group_id, before.partition_id, before.version + 1, next_state,
        append_state.committed, append_state.committed, before.skipped,
        append_state.attempt, append_state.narrow_attempt, append_state.narrow_to,
        entry, append_state.due_at, before.acked_at, append_state.first_error, append_state.last_error
    );
    IF entry IS NOT NULL THEN
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
        SELECT before.group_id, p.priority, entry, p.partition_id
        FROM penstock.partitions p
        WHERE p.partition_id = before.partition_id;
    END IF;
END
$$;

-- penstock.bury(claim, failing, error, reason, traceback)
--
-- Makes a dead letter: a copy of a message whose attempts are used up. A message that retention has dropped leaves
-- none.
--
-- Parameters: as in fail_claim.
-- Returns: nothing.
-- Calls: segment_slices, unpack. Tables: partitions (read), dead_letters (insert).
CREATE OR REPLACE FUNCTION penstock.bury(
    claim penstock.journal, failing bigint, error text, reason text, traceback text DEFAULT NULL
)
RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO penstock.dead_letters (
        queue_id, group_id, partition_id, message_offset, created_at, payload, key, headers,
        reason, attempts, first_error, last_error, consumer, traceback
    )
    SELECT
        p.queue_id, claim.group_id, claim.partition_id, failing, m.message_time, m.payload, m.message_key, m.message_headers,
        bury.reason, claim.attempt, coalesce(claim.first_error, bury.error), bury.error, claim.consumer,
        bury.traceback
    FROM penstock.partitions p
    CROSS JOIN LATERAL penstock.segment_slices(claim.partition_id, failing, failing + 1) s
    CROSS JOIN LATERAL penstock.unpack(
        claim.partition_id, s.base_offset, s.count, s.created_at, s.run_skip, s.run_counts, s.run_times,
        s.body_start, s.body, s.ends, s.key_start, s.keys, s.key_ends, s.header_start, s.headers, s.header_ends
    ) m
    WHERE p.partition_id = claim.partition_id
$$;

-- penstock.claim_named(reader, queue, wanted, mode, priorities, settings, …)
--
-- Claims a partition by name, if it is in the ready list; pop_claims calls it for a pop that names a partition.
--
-- Parameters: the group, the queue, the partition's name, the group's mode, the queue's priorities, then those of
-- pop_claims.
-- Returns: the rows of pop_claims.
-- Calls: claim_partition, claim_range, newest_state. Tables: partitions (read), ready (delete).
CREATE OR REPLACE FUNCTION penstock.claim_named(
    reader       integer,
    queue        integer,
    wanted       text,
    mode         text,
    priorities   smallint[],
    settings     jsonb,
    max_messages integer,
    max_bytes    bigint,
    lease_time   float8,
    consumer     text,
    auto_ack     boolean
)
RETURNS TABLE (
    group_id integer, partition_id bigint, partition_name text, lease_id uuid, lease_until timestamptz,
    attempt smallint, claimed_from bigint, claimed_to bigint, level integer, seq bigint, shared boolean,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_variable
DECLARE
    target bigint := (SELECT p.partition_id FROM penstock.partitions p WHERE p.queue_id = queue AND p.name = wanted);
    seq_of bigint;
    entry  penstock.ready;
BEGIN
    -- Level 0: an entry taken out of order says nothing about those before it.
    WHILE mode = 'shared' LOOP
        -- Ranges that came back first, then the frontier.
        DELETE FROM penstock.ready y
        WHERE y.ctid = (
            SELECT y.ctid FROM penstock.ready y
            WHERE y.group_id = reader AND y.partition_id = target AND y.lo IS NOT NULL
            ORDER BY y.lo
            LIMIT 1
            FOR UPDATE SKIP LOCKED
        )
        RETURNING y.* INTO entry;
        EXIT WHEN NOT FOUND;
        RETURN QUERY SELECT * FROM penstock.claim_range(
            entry, 0, settings, max_messages, max_bytes, lease_time, consumer, auto_ack
        );
        IF FOUND THEN
            RETURN; -- else retention has dropped the range
        END IF;
    END LOOP;
    SELECT j.ready_seq INTO seq_of
    FROM (
        SELECT j.state, j.ready_seq FROM penstock.newest_state(reader, target) j
    ) j
    WHERE j.state = 'r';
    DELETE FROM penstock.ready y
    WHERE y.ctid = (
        -- Level by level: for a list of them PostgreSQL 15 may read the whole ready list.
        SELECT y.ctid
        FROM unnest(priorities) l (level)
        CROSS JOIN LATERAL (
            SELECT y.ctid FROM penstock.ready y
            WHERE y.group_id = reader AND y.priority = l.level AND y.seq = seq_of
            LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) y
    )
    RETURNING y.* INTO entry;
    IF entry.seq IS NULL THEN
        RETURN;
    END IF;
    IF mode = 'ordered' THEN
        RETURN QUERY SELECT * FROM penstock.claim_partition(
            reader, target, wanted, 0, entry.seq, settings, max_messages, max_bytes, lease_time, consumer, auto_ack
        );
    ELSE
        RETURN QUERY SELECT * FROM penstock.claim_range(
            entry, 0, settings, max_messages, max_bytes, lease_time, consumer, auto_ack
        );
    END IF;
END
$$;

-- penstock.claim_partition(target_group, target, partition_of, entry_level, entry_seq, settings, max_messages, max_bytes,
--                          lease_time, consumer, auto_ack)
--
-- Claims one partition whose ready list entry the caller has just deleted. That, and the journal, which names this
-- entry, makes the caller the only one who may append the next journal row; the key would refuse a second one.
-- Messages are read before anything is claimed: what cannot be read is not claimed.
--
-- Parameters: those of pop_claims, for one partition.
-- Returns: the rows of pop_claims; none when there is nothing to give: then the partition is parked, to be looked at
-- once more in a moment, or waits for a delay or a quiet period to pass.
-- Calls: deliverable, stop_after_bytes, segment_slices, trim_journal, newest_state. Tables: partitions (read), journal,
-- ready (insert).
CREATE OR REPLACE FUNCTION penstock.claim_partition(
    target_group integer,
    target       bigint,
    partition_of text,
    entry_level  integer,
    entry_seq    bigint,
    settings     jsonb,
    max_messages integer,
    max_bytes    bigint,
    lease_time   float8,
    consumer     text,
    auto_ack     boolean
)
RETURNS TABLE (
    group_id integer, partition_id bigint, partition_name text, lease_id uuid, lease_until timestamptz,
    attempt smallint, claimed_from bigint, claimed_to bigint, level integer, seq bigint, shared boolean,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_variable
DECLARE
    before   record;
    head     bigint;
    start    bigint;
    stop     bigint;
    retry_at timestamptz;
    narrow   boolean;
    lease    uuid;
    until    timestamptz;
    given    boolean := false;
BEGIN
    SELECT j.* INTO before FROM penstock.newest_state(target_group, target) j;
    IF before.state IS DISTINCT FROM 'r' OR before.ready_seq <> entry_seq THEN
        RETURN; -- an old entry of a partition that has gone on since
    END IF;
    SELECT d.start_offset, d.stop_offset, d.head_offset, d.due_at INTO start, stop, head, retry_at
    FROM penstock.deliverable(target, before.committed, settings) d;
    IF start > before.committed THEN
        -- Retention dropped the message that these are about.
        before.attempt := 0;
        before.first_error := NULL;
        before.last_error := NULL;
    END IF;

    IF stop > start THEN
        narrow := before.narrow_to > start;
        stop := least(stop, start + CASE WHEN narrow THEN 1 ELSE max_messages END);
        stop := penstock.stop_after_bytes(target, start, stop, max_bytes);
        attempt := before.attempt + 1;
        partition_name := coalesce(
            partition_of, (SELECT p.name FROM penstock.partitions p WHERE p.partition_id = target)
        );
        IF NOT auto_ack THEN
            lease := gen_random_uuid();
            until := clock_timestamp() + make_interval(
                secs => coalesce(lease_time, (settings ->> 'lease_time')::float8)
            );
        END IF;
        RETURN QUERY
        SELECT target_group, target, partition_name, lease, until, attempt, start, stop, entry_level, entry_seq, false, s.*
        FROM penstock.segment_slices(target, start, stop) s;
        given := FOUND; -- a purge may have committed since we looked what there is
    END IF;

    IF NOT given THEN
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
            due_at, acked_at, first_error, last_error
        ) VALUES (
            target_group, target, before.version + 1, CASE WHEN retry_at IS NULL THEN 'p' ELSE 't' END,
            start, start, before.skipped + start - before.committed,
            before.attempt, before.narrow_attempt, before.narrow_to,
            coalesce(retry_at, clock_timestamp() + interval '50 milliseconds'),
            before.acked_at, before.first_error, before.last_error
        );
        PERFORM penstock.trim_journal(target_group, target, before.version);
    ELSIF auto_ack THEN
        -- What failed with this message and is not past still comes alone.
        narrow := coalesce(before.narrow_to > stop, false);
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
            ready_seq, consumer, acked_at
        ) VALUES (
            target_group, target, before.version + 1, 'r', stop, stop, before.skipped + start - before.committed,
            CASE WHEN narrow THEN before.narrow_attempt ELSE 0 END,
            CASE WHEN narrow THEN before.narrow_attempt ELSE 0 END,
            CASE WHEN narrow THEN before.narrow_to END,
            nextval('penstock.ready_seq'), consumer, clock_timestamp()
        );
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
        SELECT target_group, p.priority, currval('penstock.ready_seq'), target
        FROM penstock.partitions p WHERE p.partition_id = target;
        PERFORM penstock.trim_journal(target_group, target, before.version);
    ELSE
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
            due_at, lease_id, consumer, acked_at, first_error, last_error
        ) VALUES (
            target_group, target, before.version + 1, 'c', start, stop, before.skipped + start - before.committed,
            attempt, before.narrow_attempt, before.narrow_to,
            until, lease, consumer, before.acked_at, before.first_error, before.last_error
        );
    END IF;
END
$$;

-- penstock.claim_range(entry, entry_level, settings, max_messages, max_bytes, lease_time, consumer, auto_ack)
--
-- Claims for a shared group: the range of a ready list entry, or, from the entry of a partition's frontier, the next
-- new messages. Whoever holds the frontier carves several ranges at once, takes one and puts the others and the
-- frontier back in the ready list, so that pops do not wait for one another's commit. Messages are read before they are
-- claimed: a message that cannot be read is not claimed.
--
-- Parameters: entry - the entry, which the caller has just deleted; the others as in pop_claims.
-- Returns: the rows of pop_claims.
-- Calls: deliverable, append_state, trim_journal, partition_span, stop_after_bytes, segment_slices, newest_state.
-- Tables: partitions (read), ready, claims, skips (insert).
CREATE OR REPLACE FUNCTION penstock.claim_range(
    entry        penstock.ready,
    entry_level  integer,
    settings     jsonb,
    max_messages integer,
    max_bytes    bigint,
    lease_time   float8,
    consumer     text,
    auto_ack     boolean
)
RETURNS TABLE (
    group_id integer, partition_id bigint, partition_name text, lease_id uuid, lease_until timestamptz,
    attempt smallint, claimed_from bigint, claimed_to bigint, level integer, seq bigint, shared boolean,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_variable
DECLARE
    before   penstock.journal;
    given    record;
    start    bigint := entry.lo;
    stop     bigint := entry.hi;
    frontier bigint;
    carved   bigint;
    lease    uuid;
    until    timestamptz;
BEGIN
    IF entry.lo IS NULL THEN
        SELECT j.* INTO before FROM penstock.newest_state(entry.group_id, entry.partition_id) j;
        IF before.state IS DISTINCT FROM 'r' OR before.ready_seq <> entry.seq THEN
            RETURN; -- an old entry of a partition that has gone on since
        END IF;
        SELECT d.* INTO given FROM penstock.deliverable(entry.partition_id, before.claimed_to, settings) d;
        before.skipped := before.skipped + given.start_offset - before.claimed_to;
        IF given.stop_offset <= given.start_offset THEN
            PERFORM penstock.append_state(
                before, CASE WHEN given.due_at IS NULL THEN 'p' ELSE 't' END::"char", given.start_offset,
                due_at => coalesce(given.due_at, clock_timestamp() + interval '50 milliseconds')
            );
            PERFORM penstock.trim_journal(entry.group_id, entry.partition_id, before.version);
            RETURN;
        END IF;
        start := given.start_offset;
        stop := least(given.stop_offset, start + max_messages);
        frontier := least(given.stop_offset, start + 8 * max_messages::bigint);
        FOR carved IN SELECT c FROM generate_series(stop, frontier - 1, max_messages) c LOOP
            INSERT INTO penstock.ready (group_id, priority, seq, partition_id, lo, hi)
            VALUES (
                entry.group_id, entry.priority, nextval('penstock.ready_seq'), entry.partition_id,
                carved, least(carved + max_messages, frontier)
            );
        END LOOP;
        PERFORM penstock.append_state(
            before, CASE WHEN given.head_offset > frontier THEN 'r' ELSE 'p' END::"char", frontier,
            due_at => CASE WHEN given.head_offset <= frontier THEN clock_timestamp() + interval '50 milliseconds' END
        );
        PERFORM penstock.trim_journal(entry.group_id, entry.partition_id, before.version);
    END IF;

    IF entry.lo IS NOT NULL THEN
        SELECT greatest(start, s.floor_offset) INTO start FROM penstock.partition_span(entry.partition_id) s;
        IF start > entry.lo THEN
            -- Again after a seek back: then it is the same messages, and they count once.
            INSERT INTO penstock.skips (group_id, partition_id, lo, hi)
            VALUES (entry.group_id, entry.partition_id, entry.lo, least(start, entry.hi))
            ON CONFLICT DO NOTHING;
        END IF;
        IF start >= stop THEN
            RETURN; -- retention has dropped it
        END IF;
    END IF;

    -- What is over the limits goes back in the ready list as it was. A range that failed is given out a message at a time, since
    -- nobody knows which of them failed.
    carved := penstock.stop_after_bytes(
        entry.partition_id, start, least(stop, start + CASE WHEN entry.attempt > 0 THEN 1 ELSE max_messages END), max_bytes
    );
    IF carved < stop THEN
        INSERT INTO penstock.ready (
            group_id, priority, seq, partition_id, lo, hi, attempt, first_error, last_error
        ) VALUES (
            entry.group_id, entry.priority, nextval('penstock.ready_seq'), entry.partition_id, carved, stop,
            entry.attempt, entry.first_error, entry.last_error
        );
        stop := carved;
    END IF;
    attempt := entry.attempt + 1;
    partition_name := (SELECT p.name FROM penstock.partitions p WHERE p.partition_id = entry.partition_id);
    IF NOT auto_ack THEN
        lease := gen_random_uuid();
        until := clock_timestamp() + make_interval(
            secs => coalesce(lease_time, (settings ->> 'lease_time')::float8)
        );
    END IF;
    RETURN QUERY
    SELECT entry.group_id, entry.partition_id, partition_name, lease, until, attempt, start, stop, entry_level, entry.seq, true,
           s.*
    FROM penstock.segment_slices(entry.partition_id, start, stop) s;
    IF NOT FOUND THEN
        -- A purge has committed since we looked where the floor is.
        INSERT INTO penstock.skips (group_id, partition_id, lo, hi)
        VALUES (entry.group_id, entry.partition_id, start, stop)
        ON CONFLICT DO NOTHING;
    ELSIF NOT auto_ack THEN
        INSERT INTO penstock.claims (
            group_id, partition_id, lo, hi, attempt, lease_id, due_at, consumer, first_error, last_error, alone
        ) VALUES (
            entry.group_id, entry.partition_id, start, stop, attempt, lease, until, consumer,
            entry.first_error, entry.last_error, stop - start = 1
        );
    END IF;
END
$$;

-- penstock.consumed_to(target)
--
-- Returns the offset below which every group has read a partition.
--
-- Parameters: target - the partition.
-- Returns: the offset; the largest bigint if no group reads it.
-- Calls: offset_at. Tables: partitions, consumer_groups, journal, claims, ready (read).
CREATE OR REPLACE FUNCTION penstock.consumed_to(target bigint)
RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(min(CASE
        WHEN j.committed IS NOT NULL THEN j.committed
        -- Not enrolled yet: nothing is read of the messages that `lag` counts.
        WHEN g.subscription = 'all' THEN 0
        ELSE penstock.offset_at(
            p.partition_id, CASE WHEN g.subscription = 'new' THEN g.created_at ELSE g.from_time END
        )
    END), 9223372036854775807)
    FROM penstock.partitions p
    JOIN penstock.consumer_groups g ON g.queue_id = p.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
    LEFT JOIN LATERAL (
        SELECT least(
            j.committed,
            -- Of a shared group the journal knows what was handed out; what of it is not done lies here.
            (SELECT min(c.lo) FROM penstock.claims c
             WHERE c.group_id = g.group_id AND c.partition_id = p.partition_id),
            (SELECT min(y.lo) FROM penstock.ready y
             WHERE y.group_id = g.group_id AND y.partition_id = p.partition_id AND y.lo IS NOT NULL)
        ) AS committed
        FROM penstock.journal j
        WHERE j.group_id = g.group_id AND j.partition_id = p.partition_id
        ORDER BY j.version DESC
        LIMIT 1
    ) j ON true
    WHERE p.partition_id = target
$$;

-- penstock.delete_positions(target_groups, targets)
--
-- Deletes the positions, ready list entries and claims of groups in partitions; the claims lose their lease. Waits
-- for transactions that are changing them, and repeats until nothing is left, because what such a transaction inserts
-- cannot be seen before it commits. The caller prevents new ones.
--
-- Parameters: target_groups - group ids; targets - partition ids, null for all partitions.
-- Returns: nothing.
-- Calls: nothing. Tables: journal, ready, claims, skips, beginnings (delete).
CREATE OR REPLACE FUNCTION penstock.delete_positions(target_groups integer[], targets bigint[])
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM penstock.skips k
    WHERE k.group_id = ANY (target_groups) AND (targets IS NULL OR k.partition_id = ANY (targets));
    DELETE FROM penstock.beginnings b
    WHERE b.group_id = ANY (target_groups) AND (targets IS NULL OR b.partition_id = ANY (targets));
    LOOP
        -- The ready list has no index by partition; the journal has the sequence numbers of its entries.
        WITH gone AS (
            DELETE FROM penstock.journal j
            WHERE j.group_id = ANY (target_groups) AND (targets IS NULL OR j.partition_id = ANY (targets))
            RETURNING j.group_id, j.ready_seq
        )
        DELETE FROM penstock.ready y
        USING gone d, penstock.consumer_groups g, penstock.queues q
        WHERE d.ready_seq IS NOT NULL AND g.group_id = d.group_id AND q.queue_id = g.queue_id
          AND y.group_id = d.group_id AND y.priority = ANY (q.priorities) AND y.seq = d.ready_seq;
        DELETE FROM penstock.claims c
        WHERE c.group_id = ANY (target_groups) AND (targets IS NULL OR c.partition_id = ANY (targets));
        DELETE FROM penstock.ready y
        WHERE y.group_id = ANY (target_groups)
          AND (targets IS NULL OR y.lo IS NOT NULL AND y.partition_id = ANY (targets));
        EXIT WHEN NOT EXISTS (
            SELECT 1 FROM penstock.journal j
            WHERE j.group_id = ANY (target_groups) AND (targets IS NULL OR j.partition_id = ANY (targets))
        ) AND NOT EXISTS (
            SELECT 1 FROM penstock.claims c
            WHERE c.group_id = ANY (target_groups) AND (targets IS NULL OR c.partition_id = ANY (targets))
        ) AND NOT EXISTS (
            SELECT 1 FROM penstock.ready y
            WHERE y.group_id = ANY (target_groups)
              AND (targets IS NULL OR y.lo IS NOT NULL AND y.partition_id = ANY (targets))
        );
    END LOOP;
END
$$;

-- penstock.deliverable(target, committed, settings)
--
-- What of a partition may be handed out now: from `committed`, or the floor where retention has passed it, up to the
-- head, or to where a delay ends. In a quiet period nothing may.
--
-- Parameters: target - the partition; committed - the group's position; settings - the group's.
-- Returns: the range (empty when stop_offset <= start_offset), the head, and, where messages wait for a delay or
-- a quiet period, when to look again.
-- Calls: offset_at, partition_span, time_in_runs, segment_slices, newest_segment. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.deliverable(
    target bigint, committed bigint, settings jsonb,
    OUT start_offset bigint, OUT stop_offset bigint, OUT head_offset bigint, OUT due_at timestamptz
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    newest_at timestamptz;
    first_at  timestamptz;
    delay     float8 := (settings ->> 'delay')::float8;
    quiet     float8 := (settings ->> 'quiet_period')::float8;
BEGIN
    SELECT s.head_offset, s.created_at INTO head_offset, newest_at FROM penstock.newest_segment(target) s;
    head_offset := coalesce(head_offset, 0);
    start_offset := committed;
    stop_offset := head_offset;
    IF head_offset <= committed THEN
        RETURN;
    END IF;
    -- Usually the next message is there; only where it is not, retention has been here.
    PERFORM 1 FROM (
        SELECT s.base_offset + s.count AS next_offset, s.ends FROM penstock.segments s
        WHERE s.partition_id = target AND s.base_offset <= committed
        ORDER BY s.base_offset DESC
        LIMIT 1
    ) s
    WHERE s.next_offset > committed AND s.ends IS NOT NULL;
    IF NOT FOUND THEN
        SELECT greatest(committed, s.floor_offset) INTO start_offset FROM penstock.partition_span(target) s;
    END IF;
    IF quiet > 0 AND newest_at + make_interval(secs => quiet) > clock_timestamp() THEN
        stop_offset := start_offset;
        due_at := newest_at + make_interval(secs => quiet);
    ELSIF delay > 0 AND start_offset < head_offset THEN
        stop_offset := penstock.offset_at(target, clock_timestamp() - make_interval(secs => delay));
        IF stop_offset <= start_offset THEN
            SELECT penstock.time_in_runs(s.created_at, s.run_counts, s.run_times, s.run_skip) INTO first_at
            FROM penstock.segment_slices(target, start_offset, start_offset + 1) s;
            due_at := first_at + make_interval(secs => delay);
        END IF;
    END IF;
END
$$;

-- penstock.end_claim(reader, target, lease, stop)
--
-- Acknowledges all of one claim of an ordered group, the commonest acknowledgement: the partition joins the end of the
-- ready list, or is parked where nothing is left to read. Anything else is left to ack_claims, which it agrees with.
-- Each statement here costs as much as the insert of a row, hence so few of them.
--
-- Now and then it trims the journal behind the claim. That leaves the sweep few rows of a busy partition, for which it
-- would have to look one by one; the last sixteen stay, as history.
--
-- Parameters: the ids of group, partition and lease; stop - as in ack_claims.
-- Returns: whether the claim was acknowledged; if not, nothing has changed.
-- Calls: nothing. Tables: journal (lock, insert, delete), ready (insert), partitions, segments (read).
CREATE OR REPLACE FUNCTION penstock.end_claim(reader integer, target bigint, lease uuid, stop bigint)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    held  record;
    entry bigint;
BEGIN
    SELECT
        j.version, j.state, j.claimed_to, j.skipped, j.narrow_to, j.due_at, j.lease_id,
        (SELECT p.priority FROM penstock.partitions p WHERE p.partition_id = target) AS priority,
        (
            SELECT s.base_offset + s.count FROM penstock.segments s
            WHERE s.partition_id = target
            ORDER BY s.base_offset DESC
            LIMIT 1
        ) AS head_offset
    INTO held
    FROM penstock.journal j
    WHERE j.group_id = reader AND j.partition_id = target
    ORDER BY j.version DESC
    LIMIT 1
    FOR UPDATE;
    -- Not in the query: the clock is read after the wait for the lock.
    IF (
        held.state = 'c' AND held.lease_id = lease AND held.due_at > clock_timestamp() AND held.priority IS NOT NULL
        AND coalesce(held.narrow_to, 0) <= held.claimed_to AND coalesce(stop, held.claimed_to) = held.claimed_to
    ) IS NOT TRUE THEN
        RETURN false;
    END IF;
    -- With nothing left the ready list entry would only lead to an empty look: park it at once.
    entry := CASE WHEN held.head_offset > held.claimed_to THEN nextval('penstock.ready_seq') END;
    INSERT INTO penstock.journal (
        group_id, partition_id, version, state, committed, claimed_to, skipped, ready_seq, due_at, acked_at
    )
    SELECT
        reader, target, held.version + 1, CASE WHEN entry IS NOT NULL THEN 'r' ELSE 'p' END::"char",
        held.claimed_to, held.claimed_to, held.skipped, entry,
        CASE WHEN entry IS NULL THEN clock_timestamp() + interval '50 milliseconds' END, clock_timestamp()
    -- A new statement, hence a new snapshot: whoever held the lock before us may have ended the claim.
    WHERE NOT EXISTS (
        SELECT 1 FROM penstock.journal j
        WHERE j.group_id = reader AND j.partition_id = target AND j.version > held.version
    );
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF entry IS NOT NULL THEN
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id) VALUES (reader, held.priority, entry, target);
    END IF;
    IF held.version % 32 < 2 THEN
        DELETE FROM penstock.journal j
        WHERE j.ctid = ANY (ARRAY(
            SELECT o.ctid FROM penstock.journal o
            WHERE o.group_id = reader AND o.partition_id = target
              AND o.version BETWEEN held.version - 80 AND held.version - 16
            FOR UPDATE SKIP LOCKED
        ));
    END IF;
    RETURN true;
END
$$;

-- penstock.ensure_group(queue_name, group_name)
--
-- Looks up a group, or creates it on first use; two callers at the same time get the same group.
--
-- Parameters: the names.
-- Returns: the group's id.
-- Calls: refuse_first_use, create_group, find_group. Tables: queues, consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.ensure_group(queue_name text, group_name text)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    found integer := (
        SELECT g.group_id FROM penstock.consumer_groups g
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE q.name = queue_name AND g.name = group_name
    );
BEGIN
    IF found IS NULL THEN
        PERFORM penstock.refuse_first_use(ARRAY[queue_name], group_name);
    END IF;
    RETURN coalesce(found, penstock.create_group(queue_name, group_name));
EXCEPTION WHEN duplicate_object THEN
    RETURN penstock.find_group(queue_name, group_name);
END
$$;

-- penstock.fail_claim(before, failed_offset, error, reason, wait, traceback)
--
-- Ends a claim that failed, by a nack or because its lease expired. If the failing message is known, only that one is
-- affected: it is delivered again alone, or becomes a dead letter if its attempts are used up; for the messages
-- behind it, which were not reached, this delivery does not count. If it is not known, the delivery counts for all
-- messages of the claim, and they are delivered one by one from now on, so that only the failing one becomes a dead
-- letter.
--
-- Parameters: before - the claim, whose row the caller has locked and read again; failed_offset - the message that
-- failed, if known (those before it are done); error - the handler's error; reason - by which dead letters are
-- grouped; wait - seconds until the next attempt, null for the backoff; traceback - for the dead letter.
-- Returns: whether there is a new dead letter.
-- Calls: append_state, bury. Tables: queues, consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.fail_claim(
    before penstock.journal, failed_offset bigint, error text, reason text, wait float8,
    traceback text DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    settings jsonb := (
        SELECT q.settings || g.config
        FROM penstock.consumer_groups g JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE g.group_id = before.group_id
    );
    several  boolean := before.claimed_to - before.committed > 1;
    failing  bigint := coalesce(failed_offset, CASE WHEN NOT several THEN before.committed END);
    -- The failing one comes alone until it is past, and so do all that may be the failing one.
    narrow_to      bigint := greatest(coalesce(failing + 1, before.claimed_to), before.narrow_to);
    narrow_attempt smallint := CASE WHEN failing IS NULL THEN before.attempt ELSE before.narrow_attempt END;
    pause    float8;
    next_offset bigint;
BEGIN
    IF failing IS NOT NULL AND before.attempt >= (settings ->> 'max_attempts')::integer THEN
        PERFORM penstock.bury(before, failing, error, reason, traceback);
        next_offset := failing + 1;
        IF narrow_to > next_offset THEN
            PERFORM penstock.append_state(before, 'r', next_offset, narrow_attempt, narrow_attempt, narrow_to);
        ELSE
            PERFORM penstock.append_state(before, 'r', next_offset);
        END IF;
        RETURN true;
    END IF;
    pause := coalesce(wait, least(
        (settings ->> 'backoff_max')::float8,
        (settings ->> 'backoff_initial')::float8
            * power((settings ->> 'backoff_factor')::float8, least(before.attempt - 1, 100))
    ));
    PERFORM penstock.append_state(
        before,
        CASE WHEN pause > 0 THEN 't' ELSE 'r' END::"char",
        coalesce(failing, before.committed),
        before.attempt,
        narrow_attempt,
        narrow_to,
        CASE WHEN pause > 0 THEN clock_timestamp() + make_interval(secs => pause) END,
        coalesce(before.first_error, error),
        error
    );
    RETURN false;
END
$$;

-- penstock.fail_range(held, failed_offset, error, reason, wait, traceback)
--
-- Ends a range of a shared group that failed, by a nack or because its lease expired. If the failing message is
-- known, only that one is affected: it is delivered again alone, or becomes a dead letter if its attempts are used
-- up; for the messages behind it, which were not reached, this delivery does not count. If it is not known, the
-- delivery counts for all messages of the range. The range stays one row, from which pops take one message at a time,
-- so that only the failing one becomes a dead letter.
--
-- Parameters: held - the range, whose row the caller has deleted; the others as in fail_claim.
-- Returns: whether there is a new dead letter.
-- Calls: bury, offer_range. Tables: queues, consumer_groups (read), claims (insert).
CREATE OR REPLACE FUNCTION penstock.fail_range(
    held penstock.claims, failed_offset bigint, error text, reason text, wait float8,
    traceback text DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    settings jsonb := (
        SELECT q.settings || g.config
        FROM penstock.consumer_groups g JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE g.group_id = held.group_id
    );
    -- One message that is left of a claim of several may have been reached or not.
    failing  bigint := coalesce(failed_offset, CASE WHEN held.alone THEN held.lo END);
    first    bigint := coalesce(failing, held.lo);
    past     bigint := coalesce(failing + 1, held.hi);
    pause    float8;
    copy     penstock.journal;
BEGIN
    -- Those before the failing one are done.
    IF past < held.hi THEN
        PERFORM penstock.offer_range(held, past, held.hi, (held.attempt - 1)::smallint, NULL, NULL);
    END IF;
    IF failing IS NOT NULL AND held.attempt >= (settings ->> 'max_attempts')::integer THEN
        copy.group_id := held.group_id;
        copy.partition_id := held.partition_id;
        copy.attempt := held.attempt;
        copy.consumer := held.consumer;
        copy.first_error := held.first_error;
        PERFORM penstock.bury(copy, failing, error, reason, traceback);
        RETURN true;
    END IF;
    pause := coalesce(wait, least(
        (settings ->> 'backoff_max')::float8,
        (settings ->> 'backoff_initial')::float8
            * power((settings ->> 'backoff_factor')::float8, least(held.attempt - 1, 100))
    ));
    IF pause > 0 THEN
        INSERT INTO penstock.claims (group_id, partition_id, lo, hi, attempt, due_at, first_error, last_error)
        VALUES (
            held.group_id, held.partition_id, first, past, held.attempt,
            clock_timestamp() + make_interval(secs => pause), coalesce(held.first_error, error), error
        );
    ELSE
        PERFORM penstock.offer_range(held, first, past, held.attempt, coalesce(held.first_error, error), error);
    END IF;
    RETURN false;
END
$$;

-- penstock.group_work(target_group)
--
-- Returns the partitions of a group that are not idle: in the ready list, claimed, waiting for a timer, not enrolled
-- yet, or with a late wake-up. Idle partitions have no lag, so lag, depth and pending messages follow from these.
--
-- Parameters: target_group.
-- Returns: a row per such partition with its newest journal row and its head.
-- Calls: partition_span, offset_at, newest_state. Tables: ready, journal, claims, segments, partitions, late_wakeups,
-- consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.group_work(target_group integer)
RETURNS TABLE (
    partition_id bigint, state "char", committed bigint, claimed_to bigint, head_offset bigint, since timestamptz
)
LANGUAGE sql STABLE
AS $$
    WITH touched AS (
        SELECT y.partition_id FROM penstock.ready y WHERE y.group_id = target_group AND y.lo IS NULL
        UNION
        SELECT j.partition_id FROM penstock.journal j WHERE j.due_at IS NOT NULL AND j.group_id = target_group
    ), late AS (
        -- Pushed to by somebody who could not see the state of the groups; the sweep has not been here yet.
        SELECT DISTINCT w.partition_id
        FROM penstock.late_wakeups w
        JOIN penstock.partitions p ON p.partition_id = w.partition_id
        JOIN penstock.consumer_groups g ON g.queue_id = p.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
        WHERE g.group_id = target_group
    )
    SELECT
        t.partition_id, j.state, greatest(j.committed, s.floor_offset), j.claimed_to, s.head_offset,
        -- A renewal is no new claim.
        coalesce(j.claimed_at, j.at)
    FROM (SELECT t.partition_id FROM touched t UNION SELECT l.partition_id FROM late l) t
    CROSS JOIN LATERAL penstock.newest_state(target_group, t.partition_id) j
    CROSS JOIN LATERAL penstock.partition_span(t.partition_id) s
    WHERE j.state <> 'i' OR s.head_offset > j.committed
    UNION ALL
    -- Ranges of a shared group lie beside the frontier, each a piece of work of its own.
    SELECT
        c.partition_id, CASE WHEN c.lease_id IS NULL THEN 't' ELSE 'c' END::"char", greatest(c.lo, s.floor_offset), c.hi,
        c.hi, c.claimed_at
    FROM penstock.claims c
    CROSS JOIN LATERAL penstock.partition_span(c.partition_id) s
    WHERE c.group_id = target_group
    UNION ALL
    SELECT y.partition_id, 'r', greatest(y.lo, s.floor_offset), y.lo, y.hi, (
        SELECT g.created_at FROM penstock.segments g
        WHERE g.partition_id = y.partition_id AND g.base_offset <= y.lo
        ORDER BY g.base_offset DESC
        LIMIT 1
    )
    FROM penstock.ready y
    CROSS JOIN LATERAL penstock.partition_span(y.partition_id) s
    WHERE y.group_id = target_group AND y.lo IS NOT NULL
    UNION ALL
    SELECT
        p.partition_id, 'n', greatest(s.floor_offset, x.wanted), greatest(s.floor_offset, x.wanted), s.head_offset,
        g.created_at
    FROM penstock.consumer_groups g
    JOIN penstock.partitions p ON p.queue_id = g.queue_id AND p.lane_of IS NULL
        AND (
            p.partition_id > CASE WHEN g.enrol_again THEN 0 ELSE g.enrolled_to END
            OR p.partition_id IN (SELECT l.partition_id FROM late l)
        )
    CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
    CROSS JOIN LATERAL (
        SELECT CASE g.subscription
            WHEN 'all' THEN 0
            WHEN 'new' THEN penstock.offset_at(p.partition_id, g.created_at)
            ELSE penstock.offset_at(p.partition_id, g.from_time)
        END AS wanted
    ) x
    WHERE g.group_id = target_group AND s.head_offset > s.floor_offset
      AND NOT EXISTS (
          SELECT 1 FROM penstock.journal j WHERE j.group_id = g.group_id AND j.partition_id = p.partition_id
      )
$$;

-- penstock.live_claim(target_group, target, lease)
--
-- Locks and returns a claim that is live: the lease id is its own and the deadline has not passed.
--
-- Parameters: the ids of the group, the partition and the lease.
-- Returns: the newest journal row; nulls if the lease has expired or is not the claim's own.
-- Calls: lock_newest, newest_state. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.live_claim(target_group integer, target bigint, lease uuid)
RETURNS penstock.journal
LANGUAGE plpgsql
AS $$
DECLARE
    found penstock.journal;
BEGIN
    PERFORM penstock.lock_newest(ARRAY[target_group], ARRAY[target]);
    -- A new statement, hence a new snapshot: the holder of the lock before us may have ended the claim.
    SELECT j.* INTO found FROM penstock.newest_state(target_group, target) j;
    IF found.state = 'c' AND found.lease_id = lease AND found.due_at > clock_timestamp() THEN
        RETURN found;
    END IF;
    RETURN NULL;
END
$$;

-- penstock.lock_leases(group_ids, partition_ids, lease_ids)
--
-- Locks all rows of claims of shared groups, in a fixed order. Only the holder may end or change them, after reading
-- them again in a statement of its own.
--
-- Parameters: parallel arrays.
-- Returns: nothing.
-- Calls: nothing. Tables: claims (lock).
CREATE OR REPLACE FUNCTION penstock.lock_leases(group_ids integer[], partition_ids bigint[], lease_ids uuid[])
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    locked bigint;
BEGIN
    LOOP
        PERFORM 1
        FROM (
            SELECT DISTINCT u.group_id, u.partition_id, u.lease_id
            FROM unnest(group_ids, partition_ids, lease_ids) u (group_id, partition_id, lease_id)
            ORDER BY 1, 2
        ) u
        CROSS JOIN LATERAL (
            SELECT 1 FROM penstock.claims c
            WHERE c.group_id = u.group_id AND c.partition_id = u.partition_id AND c.lease_id = u.lease_id
            ORDER BY c.lo
            FOR UPDATE
        ) c;
        GET DIAGNOSTICS locked = ROW_COUNT;
        -- The holder of the lock before us may have acknowledged a part and inserted the rest.
        EXIT WHEN locked = (
            SELECT count(*) FROM (
                SELECT DISTINCT u.group_id, u.partition_id, u.lease_id
                FROM unnest(group_ids, partition_ids, lease_ids) u (group_id, partition_id, lease_id)
            ) u
            JOIN penstock.claims c
                ON c.group_id = u.group_id AND c.partition_id = u.partition_id AND c.lease_id = u.lease_id
        );
    END LOOP;
END
$$;

-- penstock.lock_newest(group_ids, partition_ids)
--
-- Locks the newest journal row of each (group, partition), in a fixed order. From the states claimed and timed, the
-- holder of this lock alone may append the next row — after looking again, in a statement of its own, what it says.
--
-- Parameters: parallel arrays.
-- Returns: nothing.
-- Calls: nothing. Tables: journal (lock).
CREATE OR REPLACE FUNCTION penstock.lock_newest(group_ids integer[], partition_ids bigint[])
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    locked numeric;
    seen   numeric;
BEGIN
    -- Most callers want one, and that needs no sums.
    WHILE cardinality(group_ids) = 1 LOOP
        SELECT j.version INTO locked FROM penstock.journal j
        WHERE j.group_id = group_ids[1] AND j.partition_id = partition_ids[1]
        ORDER BY j.version DESC
        LIMIT 1
        FOR UPDATE;
        SELECT j.version INTO seen FROM penstock.journal j
        WHERE j.group_id = group_ids[1] AND j.partition_id = partition_ids[1]
        ORDER BY j.version DESC
        LIMIT 1;
        IF locked IS NOT DISTINCT FROM seen THEN
            RETURN;
        END IF;
    END LOOP;
    LOOP
        SELECT sum(j.version) INTO locked
        FROM (
            SELECT DISTINCT u.group_id, u.partition_id
            FROM unnest(group_ids, partition_ids) u (group_id, partition_id)
            ORDER BY 1, 2
        ) u
        CROSS JOIN LATERAL (
            SELECT j.version FROM penstock.journal j
            WHERE j.group_id = u.group_id AND j.partition_id = u.partition_id
            ORDER BY j.version DESC
            LIMIT 1
            FOR UPDATE
        ) j;
        -- Whoever held a lock before us may have appended a row, which then is the newest. Versions only grow.
        SELECT sum(j.version) INTO seen
        FROM (
            SELECT DISTINCT u.group_id, u.partition_id
            FROM unnest(group_ids, partition_ids) u (group_id, partition_id)
        ) u
        CROSS JOIN LATERAL (
            SELECT max(j.version) AS version FROM penstock.journal j
            WHERE j.group_id = u.group_id AND j.partition_id = u.partition_id
        ) j;
        EXIT WHEN locked IS NOT DISTINCT FROM seen;
    END LOOP;
END
$$;

-- penstock.nack_ordered(group_id, partition_id, lease_id, failed_offset, error, reason, wait, traceback)
--
-- Ends a failed claim of an ordered group; see nack_claim.
--
-- Parameters: as in nack_claim; reason is not null.
-- Returns: 'retry' or 'dead letter'; null when the lease is not live.
-- Calls: live_claim, fail_claim. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.nack_ordered(
    group_id      integer,
    partition_id  bigint,
    lease_id      uuid,
    failed_offset bigint,
    error         text,
    reason        text,
    wait          float8,
    traceback     text
)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    claim penstock.journal;
BEGIN
    claim := penstock.live_claim(group_id, partition_id, lease_id);
    IF claim.version IS NULL THEN
        RETURN NULL;
    END IF;
    IF failed_offset NOT BETWEEN claim.committed AND claim.claimed_to - 1 THEN
        RAISE EXCEPTION 'offset % is not in the claim, which has % to %',
            failed_offset, claim.committed, claim.claimed_to - 1
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN CASE
        WHEN penstock.fail_claim(claim, failed_offset, error, reason, wait, traceback)
            THEN 'dead letter'
        ELSE 'retry'
    END;
END
$$;

-- penstock.nack_shared(group_id, partition_id, lease_id, failed_offset, error, reason, wait, traceback)
--
-- Ends a failed claim of a shared group; see nack_claim.
--
-- Parameters: as in nack_claim; reason is not null.
-- Returns: 'retry' or 'dead letter'; null when the lease is not live.
-- Calls: lock_leases, fail_range, offer_range. Tables: claims (read, delete).
CREATE OR REPLACE FUNCTION penstock.nack_shared(
    group_id      integer,
    partition_id  bigint,
    lease_id      uuid,
    failed_offset bigint,
    error         text,
    reason        text,
    wait          float8,
    traceback     text
)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    held    penstock.claims;
    claimed record;
    outcome text;
BEGIN
    -- Locked before it is looked at: what was acknowledged of the claim cannot fail any more.
    PERFORM penstock.lock_leases(ARRAY[group_id], ARRAY[partition_id], ARRAY[lease_id]);
    SELECT
        min(c.lo) AS lo, max(c.hi) AS hi, sum(c.hi - c.lo) AS messages,
        bool_or(failed_offset BETWEEN c.lo AND c.hi - 1) AS holds
    INTO claimed
    FROM penstock.claims c
    WHERE c.group_id = nack_shared.group_id AND c.partition_id = nack_shared.partition_id
      AND c.lease_id = nack_shared.lease_id AND c.due_at > clock_timestamp();
    IF NOT claimed.holds THEN
        RAISE EXCEPTION 'offset % is not in the claim, which has % to %', failed_offset, claimed.lo, claimed.hi - 1
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF claimed.messages = 1 THEN
        failed_offset := claimed.lo;
    END IF;
    FOR held IN
        DELETE FROM penstock.claims c
        WHERE c.group_id = nack_shared.group_id AND c.partition_id = nack_shared.partition_id
          AND c.lease_id = nack_shared.lease_id AND c.due_at > clock_timestamp()
        RETURNING c.*
    LOOP
        outcome := coalesce(outcome, 'retry');
        IF failed_offset IS NULL OR failed_offset BETWEEN held.lo AND held.hi - 1 THEN
            IF penstock.fail_range(held, failed_offset, error, reason, wait, traceback) THEN
                outcome := 'dead letter';
            END IF;
        ELSIF held.lo > failed_offset THEN
            PERFORM penstock.offer_range(held, held.lo, held.hi, (held.attempt - 1)::smallint, NULL, NULL);
        END IF;
    END LOOP;
    RETURN outcome;
END
$$;

-- penstock.newest_state(of_group, of_partition)
--
-- Returns the state of a group in a partition: the newest row of the journal. PostgreSQL inlines it, so it costs what
-- the query costs; do not give it options that prevent that (STRICT, SET, SECURITY DEFINER). To lock the row, see
-- lock_newest. Views cannot call it: a view's functions run as its reader, who may not see the table.
--
-- Parameters: the ids of the group and the partition.
-- Returns: one row, or none where the group has not begun the partition.
-- Calls: nothing. Tables: journal (read).
CREATE OR REPLACE FUNCTION penstock.newest_state(of_group integer, of_partition bigint)
RETURNS SETOF penstock.journal
LANGUAGE sql STABLE
AS $$
    SELECT j.* FROM penstock.journal j
    WHERE j.group_id = of_group AND j.partition_id = of_partition
    ORDER BY j.version DESC
    LIMIT 1
$$;

-- penstock.offer_range(held, from_offset, to_offset, attempt, first_error, last_error)
--
-- Puts a range of a shared group back in the ready list, as one entry. A range with attempts is delivered one message
-- at a time.
--
-- Parameters: held - the claim that the range was part of; the others - the columns of the entry.
-- Returns: nothing.
-- Calls: nothing. Tables: partitions (read), ready (insert).
CREATE OR REPLACE FUNCTION penstock.offer_range(
    held penstock.claims, from_offset bigint, to_offset bigint, attempt smallint, first_error text, last_error text
)
RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO penstock.ready (group_id, priority, seq, partition_id, lo, hi, attempt, first_error, last_error)
    SELECT
        held.group_id, p.priority, nextval('penstock.ready_seq'), p.partition_id, from_offset, to_offset,
        offer_range.attempt, offer_range.first_error, offer_range.last_error
    FROM penstock.partitions p
    WHERE p.partition_id = held.partition_id
$$;

-- penstock.release_ordered(group_id, partition_id, lease_id)
--
-- Ends a claim of an ordered group without counting an attempt; see release_claim.
--
-- Parameters: as in release_claim.
-- Returns: whether there was such a claim.
-- Calls: lock_newest, append_state, newest_state. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.release_ordered(group_id integer, partition_id bigint, lease_id uuid)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    claim penstock.journal;
BEGIN
    PERFORM penstock.lock_newest(ARRAY[release_ordered.group_id], ARRAY[release_ordered.partition_id]);
    SELECT j.* INTO claim FROM penstock.newest_state(release_ordered.group_id, release_ordered.partition_id) j;
    IF claim.state IS DISTINCT FROM 'c'
       OR release_ordered.lease_id IS NOT NULL
       AND (claim.lease_id <> release_ordered.lease_id OR claim.due_at <= clock_timestamp())
    THEN
        RETURN false;
    END IF;
    PERFORM penstock.append_state(
        claim, 'r', claim.committed, (claim.attempt - 1)::smallint, claim.narrow_attempt, claim.narrow_to,
        NULL, claim.first_error, claim.last_error
    );
    RETURN true;
END
$$;

-- penstock.release_shared(group_id, partition_id, lease_id)
--
-- Ends a claim of a shared group without counting an attempt; see release_claim. With no lease id it ends every claim
-- of the partition.
--
-- Parameters: as in release_claim.
-- Returns: whether there was such a claim.
-- Calls: lock_leases, offer_range. Tables: claims (read, delete).
CREATE OR REPLACE FUNCTION penstock.release_shared(group_id integer, partition_id bigint, lease_id uuid)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    leases   uuid[] := ARRAY[lease_id];
    held     penstock.claims;
    released boolean := false;
BEGIN
    IF lease_id IS NULL THEN
        leases := ARRAY(
            SELECT DISTINCT c.lease_id FROM penstock.claims c
            WHERE c.group_id = release_shared.group_id AND c.partition_id = release_shared.partition_id
              AND c.lease_id IS NOT NULL
        );
    END IF;
    PERFORM penstock.lock_leases(
        array_fill(group_id, ARRAY[cardinality(leases)]), array_fill(partition_id, ARRAY[cardinality(leases)]), leases
    );
    FOR held IN
        DELETE FROM penstock.claims c
        WHERE c.group_id = release_shared.group_id AND c.partition_id = release_shared.partition_id
          AND c.lease_id = ANY (leases)
          -- A lease that has ended is the sweep's, which counts the attempt: else a worker that is always too late
          -- would get the same messages for ever.
          AND (release_shared.lease_id IS NULL OR c.due_at > clock_timestamp())
        RETURNING c.*
    LOOP
        PERFORM penstock.offer_range(
            held, held.lo, held.hi, (held.attempt - 1)::smallint, held.first_error, held.last_error
        );
        released := true;
    END LOOP;
    RETURN released;
END
$$;

-- penstock.renew_ordered(group_ids, partition_ids, lease_ids, lease_time)
--
-- Extends the leases of claims of ordered groups; see renew_claims. In one statement: row by row, a hundred claims took
-- half as long again.
--
-- Parameters: as in renew_claims.
-- Returns: for each claim, in the order given, its new deadline, or null where it was not renewed.
-- Calls: lock_newest, newest_state. Tables: queues, consumer_groups (read), journal (read, insert).
CREATE OR REPLACE FUNCTION penstock.renew_ordered(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], lease_time float8
)
RETURNS timestamptz[]
LANGUAGE plpgsql
AS $$
DECLARE
    renewed timestamptz[];
BEGIN
    PERFORM penstock.lock_newest(group_ids, partition_ids);
    WITH renewing AS MATERIALIZED (
        SELECT u.position, j.*, clock_timestamp() + make_interval(
            secs => coalesce(lease_time, (g.config ->> 'lease_time')::float8, (q.settings ->> 'lease_time')::float8)
        ) AS until
        FROM unnest(group_ids, partition_ids, lease_ids) WITH ORDINALITY
            u (group_id, partition_id, lease_id, position)
        CROSS JOIN LATERAL penstock.newest_state(u.group_id, u.partition_id) j
        JOIN penstock.consumer_groups g ON g.group_id = j.group_id
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE j.state = 'c' AND j.lease_id = u.lease_id AND j.due_at > clock_timestamp()
    ), appended AS (
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, attempt, narrow_attempt, narrow_to,
            due_at, lease_id, consumer, claimed_at, acked_at, first_error, last_error
        )
        SELECT
            r.group_id, r.partition_id, r.version + 1, 'c', r.committed, r.claimed_to, r.skipped,
            r.attempt, r.narrow_attempt, r.narrow_to,
            r.until, r.lease_id, r.consumer, coalesce(r.claimed_at, r.at), r.acked_at, r.first_error, r.last_error
        FROM renewing r
    )
    SELECT array_agg(r.until ORDER BY n) INTO renewed
    FROM generate_series(1, cardinality(lease_ids)) n
    LEFT JOIN renewing r ON r.position = n;
    RETURN renewed;
END
$$;

-- penstock.renew_shared(group_ids, partition_ids, lease_ids, lease_time)
--
-- Extends the leases of claims of shared groups; see renew_claims.
--
-- Parameters: as in renew_claims.
-- Returns: for each claim, in the order given, its new deadline, or null where it was not renewed.
-- Calls: lock_leases. Tables: queues, consumer_groups (read), claims (update).
CREATE OR REPLACE FUNCTION penstock.renew_shared(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], lease_time float8
)
RETURNS timestamptz[]
LANGUAGE plpgsql
AS $$
DECLARE
    renewed timestamptz[];
BEGIN
    PERFORM penstock.lock_leases(group_ids, partition_ids, lease_ids);
    WITH renewing AS (
        UPDATE penstock.claims c
        SET due_at = clock_timestamp() + make_interval(
            secs => coalesce(lease_time, (g.config ->> 'lease_time')::float8, (q.settings ->> 'lease_time')::float8)
        )
        FROM unnest(group_ids, partition_ids, lease_ids) WITH ORDINALITY u (group_id, partition_id, lease_id, position)
        JOIN penstock.consumer_groups g ON g.group_id = u.group_id
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE c.group_id = u.group_id AND c.partition_id = u.partition_id AND c.lease_id = u.lease_id
          AND c.due_at > clock_timestamp()
        RETURNING u.position, c.due_at
    )
    SELECT array_agg(r.until ORDER BY n) INTO renewed
    FROM generate_series(1, cardinality(lease_ids)) n
    LEFT JOIN LATERAL (SELECT min(r.due_at) AS until FROM renewing r WHERE r.position = n) r ON true;
    RETURN renewed;
END
$$;

-- penstock.require_lease(live)
--
-- Raises an error unless a lease was live.
--
-- Parameters: live - whether it was.
-- Returns: nothing; raises object_not_in_prerequisite_state.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_lease(live boolean)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF live IS NOT TRUE THEN
        RAISE EXCEPTION 'the lease has expired or is another consumer''s; nothing was changed'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'The messages are delivered again. Renew in time, or give the group a longer lease_time.';
    END IF;
END
$$;

-- penstock.seek_partition(seeking, target, to_offset, to_time, to_end, preview)
--
-- Moves a group to another position in one partition. To be allowed to append in any state, it takes the partition's
-- lock, the lock of the newest journal row, and the ready list entry; it waits for none of them.
--
-- Parameters: those of seek_partitions.
-- Returns: 'moved', 'there' or 'busy', the positions, and whether a claim lost its lease.
-- Calls: partition_span, offset_at, append_state, trim_journal, newest_state. Tables: partitions, journal (lock),
-- ready, claims (lock, delete), consumer_groups, queues (read).
CREATE OR REPLACE FUNCTION penstock.seek_partition(
    seeking integer, target bigint, to_offset bigint, to_time timestamptz, to_end text, preview boolean,
    OUT outcome text, OUT was_at bigint, OUT now_at bigint, OUT revoked boolean
)
LANGUAGE plpgsql
AS $$
DECLARE
    before penstock.journal;
    locked bigint;
    span   record;
BEGIN
    IF NOT preview THEN
        outcome := 'busy';
        PERFORM 1 FROM penstock.partitions p WHERE p.partition_id = target FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        -- SKIP LOCKED would go on to an older row: lock the newest or nothing.
        SELECT j.* INTO before FROM penstock.newest_state(seeking, target) j;
        IF FOUND THEN
            PERFORM 1 FROM penstock.journal j
            WHERE j.group_id = seeking AND j.partition_id = target AND j.version = before.version
            FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN;
            END IF;
        END IF;
        locked := before.version;
    END IF;
    SELECT j.* INTO before FROM penstock.newest_state(seeking, target) j;
    IF NOT preview AND before.version IS DISTINCT FROM locked THEN
        RETURN; -- somebody popped it or settled it before we had the lock
    END IF;
    SELECT s.* INTO span FROM penstock.partition_span(target) s;
    was_at := coalesce(least(
        before.committed,
        (SELECT min(c.lo) FROM penstock.claims c WHERE c.group_id = seeking AND c.partition_id = target),
        (SELECT min(y.lo) FROM penstock.ready y
         WHERE y.group_id = seeking AND y.partition_id = target AND y.lo IS NOT NULL)
    ), CASE
        WHEN (SELECT g.subscription FROM penstock.consumer_groups g WHERE g.group_id = seeking) = 'new'
        THEN span.head_offset ELSE span.floor_offset
    END);
    now_at := CASE
        WHEN to_end = 'earliest' THEN span.floor_offset
        WHEN to_end = 'latest' THEN span.head_offset
        WHEN to_time IS NOT NULL THEN penstock.offset_at(target, to_time)
        ELSE least(greatest(to_offset, span.floor_offset), span.head_offset)
    END;
    revoked := coalesce(before.state = 'c', false) OR EXISTS (
        SELECT 1 FROM penstock.claims c
        WHERE c.group_id = seeking AND c.partition_id = target AND c.lease_id IS NOT NULL
    );
    -- What a shared group handed out beyond there and is done would not come again by itself.
    IF now_at = was_at AND coalesce(before.committed, was_at) = was_at AND NOT revoked THEN
        outcome := 'there';
        RETURN;
    END IF;
    outcome := 'moved';
    IF preview THEN
        RETURN;
    END IF;
    -- A shared group moves as a whole: what was handed out and is not done moves with it.
    locked := (SELECT count(*) FROM (
        SELECT 1 FROM penstock.claims c
        WHERE c.group_id = seeking AND c.partition_id = target
        FOR UPDATE SKIP LOCKED
    ) c) + (SELECT count(*) FROM (
        SELECT 1 FROM penstock.ready y
        WHERE y.group_id = seeking AND y.partition_id = target AND y.lo IS NOT NULL
        FOR UPDATE SKIP LOCKED
    ) y);
    IF locked < (SELECT count(*) FROM penstock.claims c WHERE c.group_id = seeking AND c.partition_id = target) + (
        SELECT count(*) FROM penstock.ready y
        WHERE y.group_id = seeking AND y.partition_id = target AND y.lo IS NOT NULL
    ) THEN
        outcome := 'busy'; -- somebody is popping or settling a range
        RETURN;
    END IF;
    IF before.state = 'r' THEN
        DELETE FROM penstock.ready y
        WHERE y.ctid = (
            SELECT y.ctid FROM penstock.ready y
            WHERE y.group_id = seeking AND y.seq = before.ready_seq AND y.priority = ANY ((
                SELECT q.priorities FROM penstock.queues q
                JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
                WHERE g.group_id = seeking
            )::smallint[])
            FOR UPDATE SKIP LOCKED
        );
        IF NOT FOUND THEN
            outcome := 'busy'; -- somebody is popping it
            RETURN;
        END IF;
    END IF;
    DELETE FROM penstock.claims c WHERE c.group_id = seeking AND c.partition_id = target;
    DELETE FROM penstock.ready y WHERE y.group_id = seeking AND y.partition_id = target AND y.lo IS NOT NULL;
    IF before.version IS NULL THEN
        before.group_id := seeking;
        before.partition_id := target;
        before.version := 0;
        before.skipped := 0;
    END IF;
    PERFORM penstock.append_state(
        before, CASE WHEN span.head_offset > now_at THEN 'r' ELSE 'i' END::"char", now_at
    );
    PERFORM penstock.trim_journal(seeking, target, before.version);
END
$$;

-- penstock.take_dead_letters(queue_name, group_name, wanted_reason, wanted_ids, max_rows)
--
-- Deletes a chunk of dead letters, oldest first, of at most 64 MiB, or one. Concurrent callers get different ones.
--
-- Parameters: group_name, wanted_reason, wanted_ids - null for all; max_rows - the largest number.
-- Returns: the deleted rows.
-- Calls: find_queue. Tables: dead_letters (delete), consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.take_dead_letters(
    queue_name text, group_name text, wanted_reason text, wanted_ids bigint[], max_rows integer
)
RETURNS SETOF penstock.dead_letters
LANGUAGE plpgsql
AS $$
DECLARE
    -- Looked up before and not within the query, where an empty table would keep it from being asked at all.
    queue integer := penstock.find_queue(queue_name);
BEGIN
    RETURN QUERY
    -- As an array, which is made once: joined to the subquery, a plan may run it again and pass over what is deleted.
    DELETE FROM penstock.dead_letters d
    WHERE d.dead_letter_id = ANY (ARRAY(
        SELECT l.dead_letter_id
        FROM (
            SELECT l.dead_letter_id, sum(l.bytes) OVER running AS bytes, row_number() OVER running AS nth
            FROM (
                SELECT d.dead_letter_id, coalesce(octet_length(d.payload), 0) AS bytes
                FROM penstock.dead_letters d
                JOIN penstock.consumer_groups g ON g.group_id = d.group_id
                WHERE d.queue_id = queue
                  AND (take_dead_letters.group_name IS NULL OR g.name = take_dead_letters.group_name)
                  AND (wanted_reason IS NULL OR d.reason = wanted_reason)
                  AND (wanted_ids IS NULL OR d.dead_letter_id = ANY (wanted_ids))
                ORDER BY d.dead_letter_id
                LIMIT max_rows
                FOR UPDATE OF d SKIP LOCKED
            ) l
            WINDOW running AS (ORDER BY l.dead_letter_id)
        ) l
        -- No more than can be held in memory at once, but always one.
        WHERE l.bytes <= 67108864 OR l.nth = 1
    ))
    RETURNING d.*;
END
$$;

-- penstock.wake_partitions(targets, base_offsets, only_group)
--
-- Puts partitions that were just pushed to in the ready list for every group that is not at them already. The caller holds the
-- locks of the partitions and the shared lock of their queues, and calls this in a statement of its own: only so
-- does it see the newest state of every group, and every group there is.
--
-- Parameters: targets - partition ids; base_offsets - the first offset that was pushed to each; only_group - null for
-- every group.
-- Returns: nothing.
-- Calls: begin_partition, newest_state. Tables: partitions, consumer_groups (read), journal, ready (insert).
CREATE OR REPLACE FUNCTION penstock.wake_partitions(
    targets bigint[], base_offsets bigint[], only_group integer DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    waking record;
BEGIN
    -- For one partition plain statements cost less than one that does all; for many it is the other way round.
    IF cardinality(targets) = 1 THEN
        FOR waking IN
            SELECT
                g.group_id, p.partition_id, p.priority, coalesce(j.version, 0) + 1 AS version,
                coalesce(j.committed, CASE g.subscription
                    WHEN 'all' THEN 0
                    WHEN 'new' THEN penstock.begin_partition(g.group_id, p.partition_id, base_offsets[1], g.created_at)
                    ELSE penstock.begin_partition(g.group_id, p.partition_id, NULL, g.from_time)
                END) AS committed,
                coalesce(j.skipped, 0) AS skipped, j.acked_at,
                nextval('penstock.ready_seq') AS seq
            FROM (SELECT p.* FROM penstock.partitions p WHERE p.partition_id = targets[1] LIMIT 1) p
            JOIN penstock.consumer_groups g
                ON g.queue_id = p.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
            LEFT JOIN LATERAL (
                SELECT j.version, j.state, j.committed, j.skipped, j.acked_at
                FROM penstock.journal j
                WHERE j.group_id = g.group_id AND j.partition_id = p.partition_id
                ORDER BY j.version DESC
                LIMIT 1
            ) j ON true
            WHERE (j.state IS NULL OR j.state IN ('i', 'p')) AND (only_group IS NULL OR g.group_id = only_group)
              AND (j.version IS NOT NULL OR g.from_time IS NULL OR g.from_time <= clock_timestamp())
        LOOP
            INSERT INTO penstock.journal (
                group_id, partition_id, version, state, committed, claimed_to, skipped, ready_seq, acked_at
            ) VALUES (
                waking.group_id, waking.partition_id, waking.version, 'r', waking.committed, waking.committed,
                waking.skipped, waking.seq, waking.acked_at
            );
            INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
            VALUES (waking.group_id, waking.priority, waking.seq, waking.partition_id);
        END LOOP;
        RETURN;
    END IF;
    WITH waking AS MATERIALIZED (
        SELECT
            g.group_id, p.partition_id, p.priority, coalesce(j.version, 0) + 1 AS version,
            coalesce(j.committed, CASE g.subscription
                WHEN 'all' THEN 0
                WHEN 'new' THEN penstock.begin_partition(g.group_id, p.partition_id, w.base_offset, g.created_at)
                ELSE penstock.begin_partition(g.group_id, p.partition_id, NULL, g.from_time)
            END) AS committed,
            coalesce(j.skipped, 0) AS skipped, j.acked_at,
            nextval('penstock.ready_seq') AS seq
        FROM unnest(targets, base_offsets) w (partition_id, base_offset)
        -- LIMIT: a plain join, planned for a small table, begins with the groups and all partitions of their queue.
        CROSS JOIN LATERAL (
            SELECT p.* FROM penstock.partitions p WHERE p.partition_id = w.partition_id LIMIT 1
        ) p
        JOIN penstock.consumer_groups g
            ON g.queue_id = p.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
        LEFT JOIN LATERAL penstock.newest_state(g.group_id, p.partition_id) j ON true
        WHERE (j.state IS NULL OR j.state IN ('i', 'p')) AND (only_group IS NULL OR g.group_id = only_group)
          -- A subscription from a time to come has nothing to read yet, and takes the partition up then.
          AND (j.version IS NOT NULL OR g.from_time IS NULL OR g.from_time <= clock_timestamp())
    ), appended AS (
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, ready_seq, acked_at
        )
        SELECT w.group_id, w.partition_id, w.version, 'r', w.committed, w.committed, w.skipped, w.seq, w.acked_at
        FROM waking w
    )
    INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
    SELECT w.group_id, w.priority, w.seq, w.partition_id FROM waking w;
END
$$;

-- penstock.append_segments(targets, counts, bodies, ends, keys, key_ends, headers, header_ends)
--
-- Assigns offsets to segments and writes them. The caller has checked them (require_segments), holds the locks of all
-- the partitions, and calls this in a statement of its own, so that it sees the newest segment. Offsets are computed
-- from the counts alone: the payload is not sorted.
--
-- Parameters: targets - a partition id per segment; the others as in push_segments.
-- Returns: one row per segment, in the order given. Times never decrease within a partition.
-- Calls: refuse_full, offset_limit, packed_bytes, compresses, wake_partitions, newest_segment. Tables: queues,
-- partitions (read), segments, late_wakeups (insert).
CREATE OR REPLACE FUNCTION penstock.append_segments(
    targets     bigint[],
    counts      integer[],
    bodies      bytea[],
    ends        bytea[],
    keys        bytea[],
    key_ends    bytea[],
    headers     bytea[],
    header_ends bytea[]
)
RETURNS TABLE (partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz)
LANGUAGE plpgsql
AS $$
DECLARE
    now_here   timestamptz := clock_timestamp();
    offsets    bigint[];
    times      timestamptz[];
    compressed boolean[];
BEGIN
    SELECT
        array_agg(coalesce(newest.head_offset, 0) + s.before ORDER BY s.position),
        array_agg(greatest(now_here, newest.created_at) ORDER BY s.position),
        array_agg(penstock.compresses(p.settings ->> 'compression') ORDER BY s.position)
    INTO offsets, times, compressed
    FROM (
        SELECT u.target, u.position, sum(u.count) OVER (PARTITION BY u.target ORDER BY u.position) - u.count AS before
        FROM unnest(targets, counts) WITH ORDINALITY u (target, count, position)
    ) s
    -- LIMIT: a plain join, planned for small tables, begins with the queues and all of their partitions.
    CROSS JOIN LATERAL (
        SELECT (SELECT q.settings FROM penstock.queues q WHERE q.queue_id = p.queue_id)
        FROM penstock.partitions p
        WHERE p.partition_id = s.target
        LIMIT 1
    ) p
    LEFT JOIN LATERAL penstock.newest_segment(s.target) newest ON true;

    PERFORM penstock.refuse_full(p.name)
    FROM unnest(targets, offsets, counts) s (target, base_offset, count)
    JOIN penstock.partitions p ON p.partition_id = s.target
    WHERE s.base_offset + s.count > penstock.offset_limit();

    INSERT INTO penstock.segments (
        partition_id, base_offset, created_at, count, bytes,
        body, body_compressed, ends, keys, key_ends, headers, header_ends
    )
    SELECT
        s.target, s.base_offset, s.created_at, s.count, penstock.packed_bytes(s.body, s.keys, s.headers),
        CASE WHEN NOT s.compressed THEN s.body END, CASE WHEN s.compressed THEN s.body END,
        s.ends, s.keys, s.key_ends, s.headers, s.header_ends
    FROM unnest(
        targets, offsets, times, counts, compressed, bodies, ends, keys, key_ends, headers, header_ends
    ) s (
        target, base_offset, created_at, count, compressed, body, ends, keys, key_ends, headers, header_ends
    );

    IF current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM penstock.wake_partitions(array_agg(t.target), array_agg(t.base_offset))
        FROM (
            SELECT u.target, min(u.base_offset) AS base_offset
            FROM unnest(targets, offsets) u (target, base_offset)
            GROUP BY u.target
        ) t;
    ELSE
        -- This snapshot may show an old state of the groups. The sweep looks at a new one.
        INSERT INTO penstock.late_wakeups (partition_id, base_offset)
        SELECT u.target, min(u.base_offset) FROM unnest(targets, offsets) u (target, base_offset) GROUP BY u.target;
    END IF;
    RETURN QUERY SELECT * FROM unnest(targets, offsets, counts, times);
END
$$;

-- penstock.begin_partition(target_group, target, base_offset, moment)
--
-- Returns where a group with a subscription other than 'all' begins in a partition, and records it for `verify`: at
-- the first message that is not older than `moment`, or at the one that is being pushed. That one need not be the
-- first: other pushes may not have seen the group, or may have left a late wake-up that has not fired.
--
-- Parameters: base_offset - the first offset that is being pushed, null for none; moment - the start of the
-- subscription.
-- Returns: the offset.
-- Calls: offset_at. Tables: beginnings (insert).
CREATE OR REPLACE FUNCTION penstock.begin_partition(
    target_group integer, target bigint, base_offset bigint, moment timestamptz
)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    begins bigint := least(base_offset, penstock.offset_at(target, moment));
BEGIN
    INSERT INTO penstock.beginnings (group_id, partition_id, base_offset) VALUES (target_group, target, begins)
    ON CONFLICT DO NOTHING;
    RETURN begins;
END
$$;

-- penstock.column_starts(firsts, data, ends)
--
-- Returns where segments begin in a column that has all of them, one after the other.
--
-- Parameters: firsts - the index of the first message of each segment, and the number of messages; data - the values;
-- ends - where each value ends, counted from 0 in every segment.
-- Returns: where each segment begins in data, and where the last one ends; null for no column. Raises if the ends do
-- not fit the data.
-- Calls: int32_at. Tables: none.
CREATE OR REPLACE FUNCTION penstock.column_starts(firsts integer[], data bytea, ends bytea)
RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    -- Impossible ones: a size that cannot be leaves the last of them.
    starts integer[] := 0 || array_fill(-1, ARRAY[cardinality(firsts) - 1]);
    size   integer;
BEGIN
    IF data IS NULL THEN
        RETURN NULL;
    END IF;
    FOR nth IN 2..cardinality(firsts) LOOP
        size := penstock.int32_at(ends, firsts[nth] - 1);
        EXIT WHEN size < 0 OR size > octet_length(data) - starts[nth - 1];
        starts[nth] := starts[nth - 1] + size;
    END LOOP;
    IF starts[cardinality(starts)] <> octet_length(data) THEN
        RAISE EXCEPTION 'the last ends of all segments must add up to the length of the column'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN starts;
END
$$;

-- penstock.compresses(choice)
--
-- Returns whether a queue's values are stored in the compressed column. pglz halves the speed of writing, so `auto`
-- means lz4 or none.
--
-- Parameters: choice - the queue's setting `compression`.
-- Returns: true for the compressed column.
-- Calls: lz4_available. Tables: none.
CREATE OR REPLACE FUNCTION penstock.compresses(choice text)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT choice = 'on' OR choice = 'auto' AND penstock.lz4_available()
$$;

-- penstock.delete_partitions(targets)
--
-- Deletes partitions with all their rows in other tables; no other function knows which those are. Dead letters stay:
-- they have copies of their messages and are deleted with their queue.
--
-- Parameters: targets - partition ids.
-- Returns: the number of messages deleted.
-- Calls: partition_span, forget_pushes, delete_positions. Tables: partitions (lock, delete), segments, trimmed,
-- late_wakeups, archived (delete), deleted_partitions (insert), consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.delete_partitions(targets bigint[])
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    messages bigint;
BEGIN
    PERFORM 1 FROM penstock.partitions p WHERE p.partition_id = ANY (targets) ORDER BY p.partition_id FOR UPDATE;
    SELECT coalesce(sum(s.head_offset - s.floor_offset), 0) INTO messages
    FROM unnest(targets) t (partition_id)
    CROSS JOIN LATERAL penstock.partition_span(t.partition_id) s;
    -- For readers with positions of their own, which must know whether they had read the partition to the end.
    INSERT INTO penstock.deleted_partitions (partition_id, head_offset)
    SELECT t.partition_id, s.head_offset
    FROM unnest(targets) t (partition_id)
    JOIN penstock.partitions p ON p.partition_id = t.partition_id
    CROSS JOIN LATERAL penstock.partition_span(t.partition_id) s
    WHERE EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.queue_id = p.queue_id AND g.mode = 'external'
    );
    DELETE FROM penstock.segments s WHERE s.partition_id = ANY (targets);
    DELETE FROM penstock.trimmed t WHERE t.partition_id = ANY (targets);
    DELETE FROM penstock.late_wakeups w WHERE w.partition_id = ANY (targets);
    -- The files stay where they are; they are somebody's copy.
    DELETE FROM penstock.archived a WHERE a.partition_id = ANY (targets);
    PERFORM penstock.forget_pushes(targets);
    PERFORM penstock.delete_positions(
        ARRAY(
            SELECT g.group_id FROM penstock.consumer_groups g
            WHERE g.queue_id IN (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = ANY (targets))
        ),
        targets
    );
    DELETE FROM penstock.partitions p WHERE p.partition_id = ANY (targets);
    RETURN messages;
END
$$;

-- penstock.end_at(packed, index, length)
--
-- Does what int32_at does, for queries that seldom need it: PostgreSQL inlines int32_at wherever it is called, and
-- planning that costs more than the rest of the query. Pushes do not check each end, so one may be outside its
-- column: it is moved to the column's beginning or end.
--
-- Parameters: packed - little-endian int32 numbers; index - from 0; below 0 reads as 0; length - of the column.
-- Returns: the number, from 0 to length.
-- Calls: int32_at. Tables: none.
CREATE OR REPLACE FUNCTION penstock.end_at(packed bytea, index integer, length integer)
RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
BEGIN
    RETURN least(greatest(penstock.int32_at(packed, index), 0), length);
END
$$;

-- penstock.ensure_partitions(queue_names, partition_names)
--
-- Creates the queues and partitions of a push that do not exist yet, in sorted order, so that two callers who create
-- the same ones wait for each other and never deadlock.
--
-- Parameters: parallel arrays; pairs may repeat.
-- Returns: nothing.
-- Calls: require_names, refuse_first_use, queue_lock_class. Tables: queues (insert, lock), partitions (insert).
CREATE OR REPLACE FUNCTION penstock.ensure_partitions(queue_names text[], partition_names text[])
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    -- The commonest mistake is an empty variable, so the error says which argument it was.
    IF '' = ANY (queue_names) OR '' = ANY (partition_names) THEN
        RAISE EXCEPTION '% is empty, and a name must have 1 to 255 bytes',
            CASE WHEN '' = ANY (queue_names) THEN 'queue' ELSE 'partition' END
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_names(VARIADIC queue_names);
    PERFORM penstock.require_names(VARIADIC partition_names);

    PERFORM penstock.refuse_first_use(queue_names);
    INSERT INTO penstock.queues (name)
    SELECT DISTINCT w.name
    FROM unnest(queue_names) w (name)
    WHERE NOT EXISTS (SELECT 1 FROM penstock.queues q WHERE q.name = w.name)
    ORDER BY w.name
    ON CONFLICT DO NOTHING;

    -- The shared lock keeps delete_queue from removing a queue under a partition that is being made for it.
    PERFORM pg_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id)
    FROM (
        SELECT q.queue_id FROM penstock.queues q WHERE q.name = ANY (queue_names) ORDER BY q.queue_id
    ) q;

    -- Above READ COMMITTED a queue that was deleted meanwhile still shows; locking it fails.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM 1 FROM penstock.queues q WHERE q.name = ANY (queue_names) ORDER BY q.queue_id FOR KEY SHARE;
    END IF;

    INSERT INTO penstock.partitions (queue_id, name)
    SELECT DISTINCT q.queue_id, w.partition_name
    FROM unnest(queue_names, partition_names) w (queue_name, partition_name)
    JOIN penstock.queues q ON q.name = w.queue_name
    -- LIMIT: a plain join, planned for a small table, goes through all partitions of the queue for each.
    LEFT JOIN LATERAL (
        SELECT true AS there FROM penstock.partitions p
        WHERE p.queue_id = q.queue_id AND p.name = w.partition_name
        LIMIT 1
    ) p ON true
    WHERE p.there IS NULL
    ORDER BY q.queue_id, w.partition_name
    ON CONFLICT (queue_id, name) DO NOTHING;
END
$$;

-- penstock.int32_pack(value)
--
-- Writes one int32 as four little-endian bytes, the form of `ends`.
--
-- Parameters: value - the number.
-- Returns: four bytes.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.int32_pack(value integer)
RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT substring(b FROM 4 FOR 1) || substring(b FROM 3 FOR 1) || substring(b FROM 2 FOR 1) || substring(b FROM 1 FOR 1)
    FROM int4send(value) b
$$;

-- penstock.joined_slice(partition_id, start_offset, stop_offset)
--
-- Reads a range of offsets that lies in segments of one message each as one slice, made like a merged segment: messages
-- that were pushed one at a time cost their reader about what a batch costs. The other form of segment_slices.
--
-- Parameters: the range, from start_offset up to and without stop_offset; all of it must be there.
-- Returns: one row as of segment_slices. No row where the range lies in other segments as well, or some of its messages
-- have a key, headers or a null value, or were dropped.
-- Calls: nothing. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.joined_slice(partition_id bigint, start_offset bigint, stop_offset bigint)
RETURNS TABLE (
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT
        joined_slice.start_offset, count(*)::integer, max(s.created_at),
        0, array_fill(1, ARRAY[count(*)::integer]), array_agg(s.created_at),
        0, string_agg(s.value, ''),
        -- Each end as little-endian int32: its bytes in reverse, as int4send writes them the other way round.
        string_agg(int4send((s.upto << 24) | ((s.upto & 65280) << 8) | ((s.upto >> 8) & 65280) | (s.upto >> 24)), ''),
        0, NULL::bytea, NULL::bytea, 0, NULL::bytea, NULL::bytea
    FROM (
        SELECT
            s.created_at, s.value,
            (sum(octet_length(s.value)) OVER (ORDER BY s.base_offset ROWS UNBOUNDED PRECEDING))::integer AS upto
        FROM (
            SELECT s.base_offset, s.created_at, coalesce(s.body, s.body_compressed) AS value
            FROM penstock.segments s
            WHERE s.partition_id = joined_slice.partition_id
              AND s.base_offset >= joined_slice.start_offset AND s.base_offset < joined_slice.stop_offset
            ORDER BY s.base_offset
        ) s
    ) s
    WHERE NOT EXISTS (
        SELECT 1 FROM penstock.segments o
        WHERE o.partition_id = joined_slice.partition_id
          AND o.base_offset >= joined_slice.start_offset AND o.base_offset < joined_slice.stop_offset
          AND (o.count = 1 AND octet_length(o.ends) = 4 AND o.keys IS NULL AND o.headers IS NULL) IS NOT TRUE
    )
    HAVING count(*) = joined_slice.stop_offset - joined_slice.start_offset
$$;

-- penstock.keep_messages(count, body, ends, keys, key_ends, headers, header_ends, dropped)
--
-- Packs a segment again without some of its messages.
--
-- Parameters: a packed segment; dropped - the positions to leave out, from 0; null keeps it as it is.
-- Returns: the packed segment; count is 0 if no message is left.
-- Calls: end_at, int32_pack, null_flags. Tables: none.
CREATE OR REPLACE FUNCTION penstock.keep_messages(
    INOUT count integer, INOUT body bytea, INOUT ends bytea, INOUT keys bytea, INOUT key_ends bytea,
    INOUT headers bytea, INOUT header_ends bytea, dropped integer[]
)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    -- Assigned, and so fetched from storage and decompressed once.
    all_values  bytea := body || ''::bytea;
    all_keys    bytea := keys || ''::bytea;
    all_headers bytea := headers || ''::bytea;
    nulls       bytea := penstock.null_flags(count, ends);
BEGIN
    IF dropped IS NULL THEN
        RETURN;
    END IF;
    WITH stored AS (
        -- As unpack: no end lies before the one before it.
        SELECT
            i,
            max(penstock.end_at(keep_messages.ends, i, octet_length(all_values))) OVER upto AS value_to,
            max(penstock.end_at(keep_messages.key_ends, i, octet_length(all_keys))) OVER upto AS key_to,
            max(penstock.end_at(keep_messages.header_ends, i, octet_length(all_headers))) OVER upto AS header_to
        FROM generate_series(-1, keep_messages.count - 1) i
        WINDOW upto AS (ORDER BY i)
    ), cut AS (
        SELECT
            s.*, lag(s.value_to) OVER before AS value_from, lag(s.key_to) OVER before AS key_from,
            lag(s.header_to) OVER before AS header_from
        FROM stored s
        WINDOW before AS (ORDER BY s.i)
    ), message AS (
        SELECT
            i AS position,
            substring(all_values FROM value_from + 1 FOR value_to - value_from) AS value,
            substring(all_keys FROM key_from + 1 FOR key_to - key_from) AS key,
            substring(all_headers FROM header_from + 1 FOR header_to - header_from) AS header,
            coalesce(get_byte(nulls, i), 0) AS is_null
        FROM cut
        -- Not <> ALL, which would go through all of them for each.
        WHERE i >= 0 AND NOT EXISTS (SELECT 1 FROM unnest(dropped) d WHERE d = i)
    ), ended AS (
        SELECT
            m.*,
            sum(octet_length(m.value)) OVER running AS value_end,
            sum(octet_length(m.key)) OVER running AS key_end,
            sum(octet_length(m.header)) OVER running AS header_end
        FROM message m
        WINDOW running AS (ORDER BY m.position)
    )
    SELECT
        count(*)::integer,
        string_agg(e.value, '' ORDER BY e.position),
        string_agg(penstock.int32_pack(e.value_end::integer), '' ORDER BY e.position)
            || CASE max(e.is_null)
                WHEN 1 THEN string_agg(set_byte(decode('00', 'hex'), 0, e.is_null), '' ORDER BY e.position) ELSE ''
            END,
        string_agg(e.key, '' ORDER BY e.position),
        string_agg(penstock.int32_pack(e.key_end::integer), '' ORDER BY e.position),
        string_agg(e.header, '' ORDER BY e.position),
        string_agg(penstock.int32_pack(e.header_end::integer), '' ORDER BY e.position)
    INTO count, body, ends, keys, key_ends, headers, header_ends
    FROM ended e;
END
$$;

-- penstock.lock_partitions(queue_names, partition_names, numbered)
--
-- Finds the partitions of a push, creates those that do not exist yet, and takes the locks that a push needs until
-- its transaction ends: that of each partition (in the order of ids, so that two callers never deadlock), then a
-- shared one of each queue, so that no group is created that would not see these messages.
--
-- Parameters: parallel arrays; numbered - whether messages are appended to the partition of the entry. If not, its
-- lock only keeps it from being deleted, and blocks nobody else. Null: to all of them.
-- Returns: the partition id of each entry.
-- Calls: ensure_partitions, queue_lock_class. Tables: queues (read), partitions (lock).
CREATE OR REPLACE FUNCTION penstock.lock_partitions(
    queue_names text[], partition_names text[], numbered boolean[] DEFAULT NULL
)
RETURNS bigint[]
LANGUAGE plpgsql
AS $$
DECLARE
    targets bigint[];
    locked  bigint;
BEGIN
    LOOP
        targets := ARRAY(
            SELECT p.partition_id
            FROM unnest(queue_names, partition_names) WITH ORDINALITY w (queue_name, partition_name, position)
            -- LIMIT: a plain join, planned for a small table, goes through all partitions of the queue for each.
            LEFT JOIN LATERAL (
                SELECT p.partition_id
                FROM penstock.partitions p
                WHERE p.queue_id = (SELECT q.queue_id FROM penstock.queues q WHERE q.name = w.queue_name)
                  AND p.name = w.partition_name
                LIMIT 1
            ) p ON true
            ORDER BY w.position
        );
        IF array_position(targets, NULL) IS NOT NULL THEN
            PERFORM penstock.ensure_partitions(queue_names, partition_names);
            CONTINUE;
        END IF;
        IF numbered IS NULL THEN
            PERFORM 1 FROM penstock.partitions p
            WHERE p.partition_id = ANY (targets)
            ORDER BY p.partition_id
            FOR NO KEY UPDATE;
            GET DIAGNOSTICS locked = ROW_COUNT;
        ELSE
            PERFORM 1 FROM penstock.partitions p
            WHERE p.partition_id = ANY (targets)
            ORDER BY p.partition_id
            FOR KEY SHARE;
            GET DIAGNOSTICS locked = ROW_COUNT;
            PERFORM 1 FROM penstock.partitions p
            WHERE p.partition_id = ANY (ARRAY(
                SELECT u.target FROM unnest(targets, numbered) u (target, numbered) WHERE u.numbered
            ))
            ORDER BY p.partition_id
            FOR NO KEY UPDATE;
        END IF;
        -- Fewer rows than partitions: one was deleted while we waited for its lock. Look again.
        EXIT WHEN locked = (SELECT count(DISTINCT t) FROM unnest(targets) t);
    END LOOP;

    PERFORM pg_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id)
    FROM (
        SELECT DISTINCT (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = t) AS queue_id
        FROM unnest(targets) t
        ORDER BY 1
    ) q;
    RETURN targets;
END
$$;

-- penstock.newest_segment(of_partition)
--
-- Returns the newest segment of a partition, whose end is the head: the next offset. PostgreSQL inlines it, so it
-- costs what the query costs; do not give it options that prevent that (STRICT, SET, SECURITY DEFINER). Views cannot
-- call it: a view's functions run as its reader, who may not see the table.
--
-- Parameters: the id of the partition.
-- Returns: one row, or none where nothing was ever pushed; created_at is the time of the newest message.
-- Calls: nothing. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.newest_segment(of_partition bigint)
RETURNS TABLE (base_offset bigint, head_offset bigint, created_at timestamptz)
LANGUAGE sql STABLE
AS $$
    SELECT s.base_offset, s.base_offset + s.count, s.created_at FROM penstock.segments s
    WHERE s.partition_id = of_partition
    ORDER BY s.base_offset DESC
    LIMIT 1
$$;

-- penstock.null_flags(count, ends)
--
-- Returns which messages of a segment have a null value. If some have, a byte per message follows the ends: 1 for
-- null, 0 for a value. Most segments have none, and their ends are four bytes per message.
--
-- Parameters: count, ends - those of a segment, or of a slice.
-- Returns: the bytes; null if no value is null.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.null_flags(count integer, ends bytea)
RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN octet_length(ends) > 4 * count THEN substring(ends FROM 4 * count + 1) END
$$;

-- penstock.offset_at(partition_id, moment)
--
-- Finds a time in a partition. Times never decrease within one, so this is a binary search over offsets with one
-- index probe per step; it needs no index on time.
--
-- Parameters: partition_id, moment.
-- Returns: the first offset whose message is not older than moment; the head when all are older.
-- Calls: partition_span. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.offset_at(partition_id bigint, moment timestamptz)
RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    low     bigint;
    high    bigint;
    segment record;
BEGIN
    SELECT s.floor_offset, s.head_offset INTO low, high FROM penstock.partition_span(offset_at.partition_id) s;
    -- All segments that end at or before `low` are too old; the answer lies in the segment that begins at `high`, if
    -- any.
    WHILE low < high LOOP
        SELECT s.base_offset, s.count, s.created_at INTO segment
        FROM penstock.segments s
        WHERE s.partition_id = offset_at.partition_id AND s.base_offset <= low + (high - low) / 2
        ORDER BY s.base_offset DESC
        LIMIT 1;
        IF segment.created_at < moment THEN
            low := segment.base_offset + segment.count;
        ELSE
            high := segment.base_offset;
        END IF;
    END LOOP;
    -- Once, at the end: a merged segment may have thousands of runs.
    RETURN high + coalesce((
        SELECT sum(r.messages)
        FROM penstock.segments s
        CROSS JOIN LATERAL unnest(s.run_counts, s.run_times) r (messages, created_at)
        WHERE s.partition_id = offset_at.partition_id AND s.base_offset = high AND r.created_at < moment
    ), 0);
END
$$;

-- penstock.offset_limit()
--
-- Returns the largest number of messages that a partition can ever have: a message id has 42 bits for the offset.
--
-- Parameters: none.
-- Returns: a constant.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.offset_limit()
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT 4398046511104
$$;

-- penstock.pack_messages(messages, partition_name, keys, headers, dedupe_ids, spread)
--
-- Packs a plain array of messages into segments, one per partition, in the order given.
--
-- Parameters: as in push; spread - the queue's setting.
-- Returns: one row per segment: the name of its partition, the packed columns, and the positions of its messages,
-- from 1.
-- Calls: partition_for_key, int32_pack. Tables: none.
CREATE OR REPLACE FUNCTION penstock.pack_messages(
    messages bytea[], partition_name text, message_keys text[], message_headers jsonb[], dedupe_ids text[], spread integer
)
RETURNS TABLE (
    place text, count integer, body bytea, ends bytea, keys bytea, key_ends bytea, headers bytea, header_ends bytea,
    positions integer[]
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    -- Messages without a key stay together: a batch is one segment.
    keyless text := floor(random() * spread)::bigint::text;
    some_null boolean := array_position(messages, NULL) IS NOT NULL;
BEGIN
    RETURN QUERY
    WITH message AS (
        SELECT
            m.position, coalesce(m.value, '') AS value, m.value IS NULL AS is_null,
            convert_to(coalesce(m.key, ''), 'UTF8') AS key,
            convert_to(coalesce(nullif(m.header, '{}')::text, ''), 'UTF8') AS header,
            coalesce(
                partition_name, penstock.partition_for_key(coalesce(m.key, m.dedupe_id), spread), keyless
            ) AS place
        FROM unnest(messages, message_keys, message_headers, dedupe_ids) WITH ORDINALITY
            m (value, key, header, dedupe_id, position)
    ), placed AS (
        SELECT
            m.*,
            sum(octet_length(m.value) + octet_length(m.key) + octet_length(m.header)) OVER running / 1048576 AS megabyte,
            row_number() OVER running / 10000 AS myriad
        FROM message m
        WINDOW running AS (PARTITION BY m.place ORDER BY m.position)
    ), ended AS (
        SELECT
            p.*,
            sum(octet_length(p.value)) OVER running AS value_end,
            sum(octet_length(p.key)) OVER running AS key_end,
            sum(octet_length(p.header)) OVER running AS header_end
        FROM placed p
        WINDOW running AS (PARTITION BY p.place, p.megabyte, p.myriad ORDER BY p.position)
    ), packed AS (
        SELECT
            e.place, count(*)::integer AS count,
            string_agg(e.value, '' ORDER BY e.position) AS body,
            string_agg(penstock.int32_pack(e.value_end::integer), '' ORDER BY e.position) AS ends,
            string_agg(set_byte(decode('00', 'hex'), 0, e.is_null::integer), '' ORDER BY e.position)
                FILTER (WHERE some_null) AS nulls,
            nullif(string_agg(e.key, '' ORDER BY e.position), '') AS keys,
            string_agg(penstock.int32_pack(e.key_end::integer), '' ORDER BY e.position) AS key_ends,
            nullif(string_agg(e.header, '' ORDER BY e.position), '') AS headers,
            string_agg(penstock.int32_pack(e.header_end::integer), '' ORDER BY e.position) AS header_ends,
            array_agg(e.position::integer ORDER BY e.position) AS positions
        FROM ended e
        GROUP BY e.place, e.megabyte, e.myriad
    )
    SELECT
        p.place, p.count, p.body,
        p.ends || CASE WHEN position(decode('01', 'hex') IN p.nulls) > 0 THEN p.nulls ELSE '' END,
        p.keys, CASE WHEN p.keys IS NOT NULL THEN p.key_ends END,
        p.headers, CASE WHEN p.headers IS NOT NULL THEN p.header_ends END,
        p.positions
    FROM packed p
    ORDER BY p.positions[1];
END
$$;

-- penstock.packed_bytes(body, keys, headers)
--
-- Returns the size of a segment as readers and retention count it.
--
-- Parameters: the packed columns, null where unused.
-- Returns: bytes.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.packed_bytes(body bytea, keys bytea, headers bytea)
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT octet_length(body) + coalesce(octet_length(keys), 0) + coalesce(octet_length(headers), 0)
$$;

-- penstock.partition_for_key(key, spread)
--
-- Selects the partition of a message that has a key and no partition: the first four bytes of the key's SHA-256,
-- modulo the queue's spread. The same key always selects the same partition, in every client.
--
-- Parameters: key - the message's key; spread - the queue's setting.
-- Returns: the partition's name, '0' to spread - 1.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.partition_for_key(key text, spread integer)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT ((('x' || left(encode(sha256(convert_to(key, 'UTF8')), 'hex'), 8))::bit(32)::bigint & 4294967295) % spread)::text
$$;

-- penstock.partition_span(partition_id)
--
-- Returns the positions of a partition, with one index probe for each: floor (all messages below are dropped) and
-- head (the next offset), and the time of the newest message.
--
-- Parameters: partition_id.
-- Returns: one row; zeros and a null time for a partition that never had a message.
-- Calls: newest_segment. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.partition_span(partition_id bigint)
RETURNS TABLE (floor_offset bigint, head_offset bigint, newest_at timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE
ROWS 1
AS $$
    SELECT coalesce(oldest.floor_offset, 0), coalesce(newest.head_offset, 0), newest.created_at
    FROM (SELECT) one
    LEFT JOIN LATERAL (
        SELECT CASE WHEN s.ends IS NULL THEN s.base_offset + s.count ELSE s.base_offset END AS floor_offset
        FROM penstock.segments s
        WHERE s.partition_id = partition_span.partition_id
        ORDER BY s.base_offset
        LIMIT 1
    ) oldest ON true
    LEFT JOIN LATERAL penstock.newest_segment(partition_span.partition_id) newest ON true
$$;

-- penstock.payload_json(payload)
--
-- Returns the value of a message in a form that fits into JSON: `payload` if it is JSON itself, `payloadText` if it
-- is any other text, and `payloadBase64` if it is neither. A null value is a null `payload`; the text null, which is
-- also JSON, is in `payloadText`.
--
-- Parameters: payload - the value, or null.
-- Returns: an object with one of the three.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.payload_json(payload bytea)
RETURNS jsonb
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    said   text;
    parsed jsonb;
BEGIN
    IF payload IS NULL THEN
        RETURN '{"payload": null}';
    END IF;
    said := convert_from(payload, 'UTF8');
    parsed := said::jsonb;
    RETURN CASE WHEN parsed = 'null' THEN jsonb_build_object('payloadText', said)
                ELSE jsonb_build_object('payload', parsed) END;
EXCEPTION WHEN OTHERS THEN
    RETURN CASE
        WHEN said IS NULL THEN jsonb_build_object('payloadBase64', translate(encode(payload, 'base64'), E'\n', ''))
        ELSE jsonb_build_object('payloadText', said)
    END;
END
$$;

-- penstock.require_messages(messages, keys, headers, dedupe_ids)
--
-- Raises an error if push cannot take the messages, before anything is written.
--
-- Parameters: as in push.
-- Returns: nothing; raises invalid_parameter_value.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_messages(
    messages bytea[], keys text[], headers jsonb[], dedupe_ids text[]
)
RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    problem text := CASE
        WHEN coalesce(cardinality(messages), 0) = 0 THEN 'an empty push: give at least one message'
        WHEN cardinality(keys) <> cardinality(messages) OR cardinality(headers) <> cardinality(messages)
             OR cardinality(dedupe_ids) <> cardinality(messages) THEN
            format('%s messages need as many keys, headers and dedupe ids, or none', cardinality(messages))
        WHEN array_position(keys, '') IS NOT NULL THEN
            format('the key of message %s is empty: give it a character or leave it out', array_position(keys, ''))
        WHEN EXISTS (
            SELECT 1 FROM unnest(headers) h
            WHERE jsonb_typeof(h) <> 'object'
               OR EXISTS (SELECT 1 FROM jsonb_each(h) e WHERE jsonb_typeof(e.value) <> 'string')
        ) THEN 'headers must be JSON objects whose values are strings'
    END;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

-- penstock.require_packed(queue_name, allowed, count, body, ends, keys, key_ends, headers, header_ends)
--
-- Raises an error if the packing of a segment is broken or if a message is over the queue's limit. The cost is per
-- segment: only a segment that is over the limit as a whole can have a message that is, and only such a segment is
-- checked message by message. A segment of several messages has 64 MiB at most, and keys and headers never more:
-- whoever publishes or reads a segment holds it in memory.
--
-- Parameters: the queue and its max_message_bytes, then the packed columns.
-- Returns: nothing; raises invalid_parameter_value or program_limit_exceeded.
-- Calls: int32_at, null_flags, texts_are_plain, require_texts. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_packed(
    queue_name  text,
    allowed     integer,
    count       integer,
    body        bytea,
    ends        bytea,
    keys        bytea,
    key_ends    bytea,
    headers     bytea,
    header_ends bytea
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    most_bytes constant bigint := 67108864;
    bytes      bigint;
    longest    bigint;
BEGIN
    IF count IS NULL OR count < 1 OR count > 1000000 THEN
        RAISE EXCEPTION 'a segment must have 1 to 1000000 messages and this one has %', coalesce(count, 0)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF body IS NULL OR ends IS NULL
       OR octet_length(ends) NOT IN (4 * count, 5 * count) OR penstock.int32_at(ends, count - 1) <> octet_length(body)
       OR (keys IS NULL) <> (key_ends IS NULL)
       OR octet_length(key_ends) <> 4 * count OR penstock.int32_at(key_ends, count - 1) <> octet_length(keys)
       OR (headers IS NULL) <> (header_ends IS NULL)
       OR octet_length(header_ends) <> 4 * count
       OR penstock.int32_at(header_ends, count - 1) <> octet_length(headers)
    THEN
        RAISE EXCEPTION 'a packed column of % messages needs % bytes of ends, the last of them the column''s length',
            count, 4 * count
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF btrim(penstock.null_flags(count, ends), decode('0001', 'hex')) <> '' THEN
        RAISE EXCEPTION 'the bytes after the ends say which values are null, and must be 0 or 1'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(body) > allowed THEN
        SELECT max(penstock.int32_at(ends, i)::bigint - penstock.int32_at(ends, i - 1)) INTO longest
        FROM generate_series(0, count - 1) i;
        IF longest > allowed THEN
            RAISE EXCEPTION 'a message of % bytes is over the limit of queue "%", which is % bytes',
                longest, queue_name, allowed
                USING ERRCODE = 'program_limit_exceeded',
                      HINT = 'Raise the queue''s max_message_bytes, or push a reference to the data.';
        END IF;
    END IF;
    bytes := CASE WHEN count > 1 THEN octet_length(body) ELSE 0 END
        + coalesce(octet_length(keys), 0)::bigint + coalesce(octet_length(headers), 0);
    IF bytes > most_bytes THEN
        RAISE EXCEPTION 'a segment of % bytes is too large: one of several messages, or the keys and headers of one, may have %',
            bytes, most_bytes
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Push fewer messages in one segment.';
    END IF;
    IF (keys IS NOT NULL OR headers IS NOT NULL) AND NOT penstock.texts_are_plain(keys, headers) THEN
        PERFORM penstock.require_texts(count, keys, key_ends, headers, header_ends);
    END IF;
END
$$;

-- penstock.require_segments(targets, counts, bodies, ends, keys, key_ends, headers, header_ends)
--
-- Raises an error if a segment is not packed correctly or has a message over its queue's limit. Called when messages
-- are pushed: a limit that is lowered later does not apply to them.
--
-- Parameters: targets - a partition id per segment; the others as in push_segments.
-- Returns: nothing; raises what require_packed raises.
-- Calls: require_packed. Tables: queues, partitions (read).
CREATE OR REPLACE FUNCTION penstock.require_segments(
    targets     bigint[],
    counts      integer[],
    bodies      bytea[],
    ends        bytea[],
    keys        bytea[],
    key_ends    bytea[],
    headers     bytea[],
    header_ends bytea[]
)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM penstock.require_packed(
        p.name, (p.settings ->> 'max_message_bytes')::integer,
        s.count, s.body, s.ends, s.keys, s.key_ends, s.headers, s.header_ends
    )
    FROM unnest(targets, counts, bodies, ends, keys, key_ends, headers, header_ends)
        s (target, count, body, ends, keys, key_ends, headers, header_ends)
    -- LIMIT: a plain join, planned for small tables, begins with the queues and all of their partitions.
    CROSS JOIN LATERAL (
        SELECT
            (SELECT q.name FROM penstock.queues q WHERE q.queue_id = p.queue_id),
            (SELECT q.settings FROM penstock.queues q WHERE q.queue_id = p.queue_id)
        FROM penstock.partitions p
        WHERE p.partition_id = s.target
        LIMIT 1
    ) p;
END
$$;

-- penstock.segment_slices(partition_id, start_offset, stop_offset)
--
-- Reads a range of offsets as slices of the stored segments, still packed. Whole segments pass through untouched;
-- the first and the last are cut to the range. Dropped messages are simply not there.
--
-- Parameters: the range, from start_offset up to and without stop_offset.
-- Returns: one row per slice. Ends are those of the stored segment: the value of the slice's first message begins
-- at body_start, and body begins there too (likewise for keys and headers). run_skip messages of the runs lie
-- before the slice, and some may lie behind it.
-- Calls: end_at, run_of. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.segment_slices(partition_id bigint, start_offset bigint, stop_offset bigint)
RETURNS TABLE (
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT
        s.base_offset + cut.lo, cut.hi - cut.lo, s.created_at,
        CASE WHEN run.is_cut THEN cut.lo - run.before ELSE cut.lo END,
        CASE WHEN run.is_cut THEN s.run_counts[run.first : run.first + cut.hi - cut.lo - 1] ELSE s.run_counts END,
        CASE WHEN run.is_cut THEN s.run_times[run.first : run.first + cut.hi - cut.lo - 1] ELSE s.run_times END,
        at.body_lo,
        CASE WHEN cut.whole THEN coalesce(s.body, s.body_compressed)
             ELSE substring(coalesce(s.body, s.body_compressed) FROM at.body_lo + 1 FOR greatest(at.body_hi - at.body_lo, 0)) END,
        CASE WHEN cut.whole THEN s.ends
             ELSE substring(s.ends FROM 4 * cut.lo + 1 FOR 4 * (cut.hi - cut.lo))
             -- Nothing, unless some values are null: see null_flags.
             || substring(s.ends FROM 4 * s.count + cut.lo + 1 FOR cut.hi - cut.lo) END,
        at.key_lo,
        CASE WHEN cut.whole THEN s.keys
             ELSE substring(s.keys FROM at.key_lo + 1 FOR greatest(at.key_hi - at.key_lo, 0)) END,
        CASE WHEN cut.whole THEN s.key_ends
             ELSE substring(s.key_ends FROM 4 * cut.lo + 1 FOR 4 * (cut.hi - cut.lo)) END,
        at.header_lo,
        CASE WHEN cut.whole THEN s.headers
             ELSE substring(s.headers FROM at.header_lo + 1 FOR greatest(at.header_hi - at.header_lo, 0)) END,
        CASE WHEN cut.whole THEN s.header_ends
             ELSE substring(s.header_ends FROM 4 * cut.lo + 1 FOR 4 * (cut.hi - cut.lo)) END
    FROM penstock.segments s
    CROSS JOIN LATERAL (
        SELECT
            greatest(segment_slices.start_offset - s.base_offset, 0)::integer AS lo,
            least(segment_slices.stop_offset - s.base_offset, s.count)::integer AS hi,
            segment_slices.start_offset <= s.base_offset
            AND segment_slices.stop_offset >= s.base_offset + s.count AS whole,
            octet_length(coalesce(s.body, s.body_compressed)) AS body_bytes
    ) cut
    CROSS JOIN LATERAL (
        SELECT
            CASE WHEN cut.whole THEN 0 ELSE penstock.end_at(s.ends, cut.lo - 1, cut.body_bytes) END AS body_lo,
            CASE WHEN NOT cut.whole THEN penstock.end_at(s.ends, cut.hi - 1, cut.body_bytes) END AS body_hi,
            CASE WHEN cut.whole THEN 0 ELSE penstock.end_at(s.key_ends, cut.lo - 1, octet_length(s.keys)) END AS key_lo,
            CASE WHEN NOT cut.whole THEN penstock.end_at(s.key_ends, cut.hi - 1, octet_length(s.keys)) END AS key_hi,
            CASE WHEN cut.whole THEN 0 ELSE penstock.end_at(s.header_ends, cut.lo - 1, octet_length(s.headers)) END AS header_lo,
            CASE WHEN NOT cut.whole THEN penstock.end_at(s.header_ends, cut.hi - 1, octet_length(s.headers)) END AS header_hi
    ) at
    -- Runs are cut, too, since there may be thousands: whoever takes one message gets one time. A run holds a message or
    -- more, so as many runs as messages are enough.
    CROSS JOIN LATERAL (
        SELECT
            s.run_counts IS NOT NULL AND NOT cut.whole AS is_cut,
            (penstock.run_of(s.run_counts, cut.lo, s.count))[1] AS first,
            (penstock.run_of(s.run_counts, cut.lo, s.count))[2] AS before
    ) run
    WHERE s.partition_id = segment_slices.partition_id
      AND s.base_offset >= coalesce((
          SELECT f.base_offset FROM penstock.segments f
          WHERE f.partition_id = segment_slices.partition_id AND f.base_offset <= segment_slices.start_offset
          ORDER BY f.base_offset DESC
          LIMIT 1
      ), 0)
      AND s.base_offset < segment_slices.stop_offset
      AND s.base_offset + s.count > segment_slices.start_offset
      AND s.ends IS NOT NULL
    ORDER BY s.base_offset
$$;

-- penstock.stop_after_bytes(partition_id, start_offset, stop_offset, max_bytes)
--
-- Shortens a range so that it holds about max_bytes: it ends with the segment that reaches them, so that there is
-- always at least one message. Looks at the rows only, never at the payload.
--
-- Parameters: the range, and how many bytes are wanted.
-- Returns: the offset to stop before, at most stop_offset.
-- Calls: nothing. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.stop_after_bytes(
    partition_id bigint, start_offset bigint, stop_offset bigint, max_bytes bigint
)
RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
DECLARE
    segment record;
    total   bigint := 0;
BEGIN
    FOR segment IN
        SELECT s.base_offset + s.count AS next_offset, s.bytes
        FROM penstock.segments s
        WHERE s.partition_id = stop_after_bytes.partition_id
          AND s.base_offset + s.count > start_offset
          AND s.base_offset >= coalesce((
              SELECT f.base_offset FROM penstock.segments f
              WHERE f.partition_id = stop_after_bytes.partition_id AND f.base_offset <= start_offset
              ORDER BY f.base_offset DESC
              LIMIT 1
          ), 0)
          AND s.base_offset < stop_offset
        ORDER BY s.base_offset
    LOOP
        total := total + segment.bytes;
        IF total >= max_bytes THEN
            RETURN least(segment.next_offset, stop_offset);
        END IF;
    END LOOP;
    RETURN stop_offset;
END
$$;

-- penstock.drop_below(partition_id, cutoff, max_segments, low)
--
-- Drops the oldest segments of a partition, whole segments only. The newest one stays as a stub, so that the head is
-- kept. Takes no lock that a push waits for.
--
-- Parameters: cutoff - segments that end at or before this offset are dropped; max_segments - the largest number; low
-- - where to begin: segments that the transaction has already dropped would be visited again one by one.
-- Returns: the number of segments and messages dropped, and the end of the last one.
-- Calls: newest_segment. Tables: segments (delete, update), trimmed (insert).
CREATE OR REPLACE FUNCTION penstock.drop_below(
    partition_id bigint, cutoff bigint, max_segments integer, low bigint DEFAULT 0,
    OUT dropped_segments bigint, OUT dropped_messages bigint, OUT dropped_to bigint
)
LANGUAGE plpgsql
-- Statistics older than a backlog make it look cheap to go through all of it for each segment.
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    newest bigint := (SELECT s.base_offset FROM penstock.newest_segment(drop_below.partition_id) s);
    locked integer;
    stub   integer;
BEGIN
    INSERT INTO penstock.trimmed (partition_id)
    SELECT f.partition_id FROM penstock.segments f
    WHERE f.partition_id = drop_below.partition_id AND f.base_offset = 0 AND f.base_offset < newest AND f.count <= cutoff
    ON CONFLICT DO NOTHING;
    -- Those to drop are the first ones: once their end is known, they are a range of the key.
    SELECT count(*), coalesce(max(o.next_offset), low) INTO locked, dropped_to
    FROM (
        SELECT o.base_offset + o.count AS next_offset FROM penstock.segments o
        WHERE o.partition_id = drop_below.partition_id AND o.base_offset >= low
          AND o.base_offset < newest AND o.base_offset + o.count <= cutoff
        ORDER BY o.base_offset
        LIMIT max_segments
        FOR UPDATE
    ) o;
    WITH gone AS (
        DELETE FROM penstock.segments s
        WHERE s.partition_id = drop_below.partition_id AND s.base_offset >= low AND s.base_offset < dropped_to
        RETURNING s.count, s.ends
    )
    SELECT count(*), coalesce(sum(g.count), 0) INTO dropped_segments, dropped_messages
    FROM gone g
    WHERE g.ends IS NOT NULL;
    -- Oldest first: not while one below it may be left.
    IF max_segments IS NULL OR locked < max_segments THEN
        UPDATE penstock.segments s
        SET body = NULL, body_compressed = NULL, ends = NULL, keys = NULL, key_ends = NULL,
            headers = NULL, header_ends = NULL, run_counts = NULL, run_times = NULL, bytes = 0
        WHERE s.partition_id = drop_below.partition_id AND s.base_offset = newest
          AND s.base_offset + s.count <= cutoff AND s.ends IS NOT NULL
        RETURNING s.count INTO stub;
        IF FOUND THEN
            dropped_segments := dropped_segments + 1;
            dropped_messages := dropped_messages + stub;
        END IF;
    END IF;
END
$$;

-- penstock.merge_segments(partition_id, min_segments, since)
--
-- Merges a run of small segments into one, so that messages pushed one at a time read like a batch. Every message
-- keeps its time and id. The newest segment is not merged (pushes read it), and a merged one is never merged again
-- (so each byte is rewritten at most once). The result is an update of the first row, because an insert would look
-- like a push.
--
-- Parameters: min_segments - the smallest number to merge; since - when a call last found nothing more to merge:
-- older segments below one that cannot be merged are not checked again.
-- Returns: the number of segments merged into one; 0 if there is nothing to do.
-- Calls: end_at, int32_pack, null_flags, newest_segment. Tables: segments (lock, update, delete).
CREATE OR REPLACE FUNCTION penstock.merge_segments(
    partition_id bigint, min_segments integer DEFAULT 64, since timestamptz DEFAULT '-infinity'
)
RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    newest bigint;
    low    bigint;
    run    bigint[];
    locked integer;
    merged record;
BEGIN
    newest := (SELECT s.base_offset FROM penstock.newest_segment(merge_segments.partition_id) s);
    low := (
        SELECT s.base_offset FROM penstock.segments s
        WHERE s.partition_id = merge_segments.partition_id AND s.base_offset < newest AND s.created_at < since
          AND (s.run_counts IS NULL AND s.ends IS NOT NULL AND s.bytes < 16384 AND s.count < 100) IS NOT TRUE
        ORDER BY s.base_offset DESC
        LIMIT 1
    );
    -- The lowest run of small ones that is long enough, or as much of it as one segment may hold.
    SELECT r.run INTO run
    FROM (
        SELECT array_agg(s.base_offset ORDER BY s.base_offset) AS run
        FROM (
            SELECT
                s.base_offset, s.stretch,
                sum(s.bytes) OVER upto AS bytes, sum(s.count) OVER upto AS count
            FROM (
                SELECT
                    s.base_offset, s.count, s.bytes, s.small,
                    count(*) FILTER (WHERE NOT s.small) OVER (ORDER BY s.base_offset) AS stretch
                FROM (
                    SELECT
                        s.base_offset, s.count, s.bytes,
                        s.run_counts IS NULL AND s.ends IS NOT NULL AND s.bytes < 16384 AND s.count < 100 AS small
                    FROM penstock.segments s
                    WHERE s.partition_id = merge_segments.partition_id
                      AND s.base_offset >= coalesce(low, 0) AND s.base_offset < newest
                ) s
            ) s
            WHERE s.small
            WINDOW upto AS (PARTITION BY s.stretch ORDER BY s.base_offset)
        ) s
        WHERE s.bytes <= 1048576 AND s.count <= 10000
        GROUP BY s.stretch
    ) r
    WHERE cardinality(r.run) >= greatest(min_segments, 2)
    ORDER BY r.run[1]
    LIMIT 1;
    IF run IS NULL THEN
        RETURN 0;
    END IF;

    PERFORM 1 FROM penstock.segments s
    WHERE s.partition_id = merge_segments.partition_id AND s.base_offset = ANY (run)
    ORDER BY s.base_offset
    FOR UPDATE;
    GET DIAGNOSTICS locked = ROW_COUNT;
    IF locked <> cardinality(run) THEN
        RETURN 0; -- a purge was here first
    END IF;

    SELECT
        sum(s.count)::integer AS count,
        sum(s.bytes)::integer AS bytes,
        max(s.created_at) AS created_at,
        bool_or(s.body_compressed IS NOT NULL) AS compressed,
        string_agg(s.value, '' ORDER BY s.base_offset) AS body,
        string_agg(s.keys, '' ORDER BY s.base_offset) AS keys,
        string_agg(s.headers, '' ORDER BY s.base_offset) AS headers,
        array_agg(s.count ORDER BY s.base_offset) AS run_counts,
        array_agg(s.created_at ORDER BY s.base_offset) AS run_times,
        string_agg(e.ends, '' ORDER BY s.base_offset) AS ends,
        CASE WHEN bool_or(octet_length(s.ends) > 4 * s.count) THEN string_agg(
            coalesce(penstock.null_flags(s.count, s.ends), decode(repeat('00', s.count), 'hex')), ''
            ORDER BY s.base_offset
        ) ELSE '' END AS nulls,
        string_agg(e.key_ends, '' ORDER BY s.base_offset) AS key_ends,
        string_agg(e.header_ends, '' ORDER BY s.base_offset) AS header_ends
    INTO merged
    FROM (
        SELECT
            s.*, coalesce(s.body, s.body_compressed) AS value,
            sum(octet_length(coalesce(s.body, s.body_compressed))) OVER before AS value_shift,
            sum(octet_length(s.keys)) OVER before AS key_shift,
            sum(octet_length(s.headers)) OVER before AS header_shift
        FROM penstock.segments s
        WHERE s.partition_id = merge_segments.partition_id AND s.base_offset = ANY (run)
        WINDOW before AS (ORDER BY s.base_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ) s
    CROSS JOIN LATERAL (
        SELECT
            string_agg(penstock.int32_pack(
                (penstock.end_at(s.ends, i, octet_length(s.value)) + coalesce(s.value_shift, 0))::integer), ''
                ORDER BY i
            ) AS ends,
            string_agg(penstock.int32_pack(
                (coalesce(penstock.end_at(s.key_ends, i, octet_length(s.keys)), 0) + coalesce(s.key_shift, 0))::integer), ''
                ORDER BY i
            ) AS key_ends,
            string_agg(penstock.int32_pack(
                (coalesce(penstock.end_at(s.header_ends, i, octet_length(s.headers)), 0)
                    + coalesce(s.header_shift, 0))::integer), ''
                ORDER BY i
            ) AS header_ends
        FROM generate_series(0, s.count - 1) i
    ) e;

    DELETE FROM penstock.segments s
    WHERE s.partition_id = merge_segments.partition_id AND s.base_offset = ANY (run[2:]);
    UPDATE penstock.segments s
    SET count = merged.count,
        bytes = merged.bytes,
        created_at = merged.created_at,
        body = CASE WHEN NOT merged.compressed THEN merged.body END,
        body_compressed = CASE WHEN merged.compressed THEN merged.body END,
        ends = merged.ends || merged.nulls,
        keys = merged.keys,
        key_ends = CASE WHEN merged.keys IS NOT NULL THEN merged.key_ends END,
        headers = merged.headers,
        header_ends = CASE WHEN merged.headers IS NOT NULL THEN merged.header_ends END,
        run_counts = merged.run_counts,
        run_times = merged.run_times
    WHERE s.partition_id = merge_segments.partition_id AND s.base_offset = run[1];
    RETURN cardinality(run);
END
$$;

-- penstock.retain_partition(partition_id, settings, until)
--
-- Applies a queue's retention to a partition: drops whole segments older than retention_time, and the oldest ones if
-- the partition has more than retention_bytes. Messages that a group has not read stay, unless the queue's
-- retention_rule is drop_and_count: then the group continues at the floor and counts what it missed. Messages that
-- wait for the archive stay too. Ends when nothing is left to drop, or at `until`, so that no transaction is long.
--
-- Parameters: settings - the queue's; until - when to stop.
-- Returns: the number of segments and messages dropped, and whether that was all.
-- Calls: offset_at, consumed_to, archive_bound, drop_below. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.retain_partition(
    partition_id bigint, settings jsonb, until timestamptz,
    OUT dropped_segments bigint, OUT dropped_messages bigint, OUT complete boolean
)
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    segment record;
    dropped record;
    cutoff  bigint := 0;
    held    bigint := 0;
    low     bigint := 0;
BEGIN
    -- Times never go back, so the segments that are too old are the first ones.
    IF settings ->> 'retention_time' IS NOT NULL THEN
        cutoff := penstock.offset_at(
            partition_id,
            clock_timestamp() - make_interval(secs => (settings ->> 'retention_time')::numeric::float8)
        );
    END IF;
    IF settings ->> 'retention_bytes' IS NOT NULL THEN
        FOR segment IN
            SELECT s.base_offset + s.count AS next_offset, s.bytes FROM penstock.segments s
            WHERE s.partition_id = retain_partition.partition_id
            ORDER BY s.base_offset DESC
        LOOP
            held := held + segment.bytes;
            IF held > (settings ->> 'retention_bytes')::bigint THEN
                cutoff := greatest(cutoff, segment.next_offset);
                EXIT;
            END IF;
        END LOOP;
    END IF;
    IF settings ->> 'retention_rule' = 'keep_until_consumed' THEN
        cutoff := least(cutoff, penstock.consumed_to(partition_id));
    END IF;
    cutoff := least(cutoff, penstock.archive_bound(partition_id, settings));
    dropped_segments := 0;
    dropped_messages := 0;
    LOOP
        SELECT * INTO dropped FROM penstock.drop_below(partition_id, cutoff, 500, low);
        dropped_segments := dropped_segments + dropped.dropped_segments;
        dropped_messages := dropped_messages + dropped.dropped_messages;
        low := dropped.dropped_to;
        complete := dropped.dropped_segments = 0;
        EXIT WHEN complete OR clock_timestamp() >= until;
    END LOOP;
END
$$;

-- penstock.append_numbered(targets, counts, bodies, ends, keys, key_ends, headers, header_ends)
--
-- Does what append_segments does, for callers of every isolation level. Above READ COMMITTED there is no new snapshot
-- after the locks are taken; an offset that was taken meanwhile is a duplicate key. If the segment with that key was
-- merged or dropped since, so was the newest segment of our snapshot, and locking it fails; if our snapshot has none
-- at all, the partition is in `trimmed`, and the duplicate key is there.
--
-- Parameters: those of append_segments.
-- Returns: as append_segments; raises serialization_failure if somebody pushed after the snapshot.
-- Calls: append_segments. Tables: segments (lock), trimmed (insert, delete).
CREATE OR REPLACE FUNCTION penstock.append_numbered(
    targets     bigint[],
    counts      integer[],
    bodies      bytea[],
    ends        bytea[],
    keys        bytea[],
    key_ends    bytea[],
    headers     bytea[],
    header_ends bytea[]
)
RETURNS TABLE (partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz)
LANGUAGE plpgsql
AS $$
BEGIN
    IF current_setting('transaction_isolation') = 'read committed' THEN
        RETURN QUERY SELECT * FROM penstock.append_segments(
            targets, counts, bodies, ends, keys, key_ends, headers, header_ends
        );
        RETURN;
    END IF;
    PERFORM 1 FROM penstock.segments s
    WHERE (s.partition_id, s.base_offset) IN (
        SELECT t.id, (SELECT max(g.base_offset) FROM penstock.segments g WHERE g.partition_id = t.id)
        FROM unnest(targets) t (id)
    )
    FOR SHARE;
    BEGIN
        WITH empty AS (
            SELECT DISTINCT t.id FROM unnest(targets) t (id)
            WHERE NOT EXISTS (SELECT 1 FROM penstock.segments g WHERE g.partition_id = t.id)
        )
        INSERT INTO penstock.trimmed (partition_id) SELECT e.id FROM empty e;
        DELETE FROM penstock.trimmed m
        WHERE m.partition_id = ANY (targets)
          AND NOT EXISTS (SELECT 1 FROM penstock.segments g WHERE g.partition_id = m.partition_id);
        RETURN QUERY SELECT * FROM penstock.append_segments(
            targets, counts, bodies, ends, keys, key_ends, headers, header_ends
        );
    EXCEPTION WHEN unique_violation THEN
        RAISE EXCEPTION 'a partition was pushed to after this transaction took its snapshot'
            USING ERRCODE = 'serialization_failure',
                  HINT = 'Retry the whole transaction, or push under READ COMMITTED.';
    END;
END
$$;

-- penstock.forget_pushes(targets)
--
-- Deletes the scheduled messages and the dedupe ids of partitions. The caller holds their locks.
--
-- Parameters: targets - partition ids.
-- Returns: the number of scheduled messages deleted.
-- Calls: nothing. Tables: scheduled, dedupe_ids (delete), partitions (read).
CREATE OR REPLACE FUNCTION penstock.forget_pushes(targets bigint[])
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    messages bigint;
BEGIN
    WITH gone AS (
        DELETE FROM penstock.scheduled s
        WHERE s.queue_id IN (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = ANY (targets))
          AND s.partition_id = ANY (targets)
        RETURNING s.count
    )
    SELECT coalesce(sum(g.count), 0) INTO messages FROM gone g;
    DELETE FROM penstock.dedupe_ids k WHERE k.partition_id = ANY (targets);
    RETURN messages;
END
$$;

-- penstock.publish_scheduled(max_rows, since, soon, passing, only_id)
--
-- Publishes scheduled messages that are due: deletes their rows and appends their segments, in order of due time. It
-- is part of the sweep and never waits: messages that are being cancelled, or whose partition is locked, or whose
-- queue is getting a new group, are left to the next sweep.
--
-- Parameters: max_rows - the approximate number of rows of `scheduled` to publish; since - those due before are left
-- alone, as in the sweep; soon - no later due time is looked for; passing - whether to skip postponed ones; only_id -
-- null for all.
-- Returns: the number published, whether that was all, and when the next one is due.
-- Calls: append_segments, queue_lock_class, is_put_off. Tables: scheduled (delete), partitions (lock), dedupe_ids
-- (update).
CREATE OR REPLACE FUNCTION penstock.publish_scheduled(
    max_rows integer, since timestamptz, soon timestamptz, passing boolean DEFAULT false, only_id bigint DEFAULT NULL,
    OUT published integer, OUT complete boolean, OUT next_due timestamptz
)
LANGUAGE plpgsql
AS $$
DECLARE
    -- No transaction of the sweep writes more than this, unless a single row has more.
    most_bytes constant bigint := 16777216;
    now_here   timestamptz := clock_timestamp();
    after_due  timestamptz := since;
    after_id   bigint := 0;
    written    bigint := 0;
    look_until timestamptz;
    chunk      record;
    locked     bigint[];
    quiet      integer[];
    taken      record;
    stored     record;
BEGIN
    published := 0;
    complete := true;
    -- In chunks, until enough was done: a chunk that is busy altogether must not hide those after it.
    LOOP
        SELECT
            count(*) AS found, count(*) FILTER (WHERE d.fits) AS visited,
            array_agg(d.scheduled_id) FILTER (WHERE d.fits) AS ids,
            array_agg(DISTINCT d.partition_id) FILTER (WHERE d.fits) AS places,
            (array_agg(d.due_at ORDER BY d.due_at DESC, d.scheduled_id DESC) FILTER (WHERE d.fits))[1] AS last_due,
            (array_agg(d.scheduled_id ORDER BY d.due_at DESC, d.scheduled_id DESC) FILTER (WHERE d.fits))[1] AS last_id
        INTO chunk
        FROM (
            SELECT
                s.*,
                written + sum(s.bytes) OVER running <= most_bytes
                OR written = 0 AND row_number() OVER running = 1 AS fits
            FROM (
                SELECT s.scheduled_id, s.partition_id, s.due_at, s.bytes
                FROM penstock.scheduled s
                WHERE (s.due_at, s.scheduled_id) > (after_due, after_id) AND s.due_at <= now_here
                  AND (only_id IS NULL OR s.scheduled_id = only_id)
                  AND NOT (passing AND penstock.is_put_off('scheduled', 0, s.partition_id, s.scheduled_id))
                ORDER BY s.due_at, s.scheduled_id
                LIMIT max_rows
            ) s
            WINDOW running AS (ORDER BY s.due_at, s.scheduled_id)
        ) d;
        complete := complete AND (chunk.found = 0 OR chunk.visited > 0);
        EXIT WHEN chunk.visited = 0;
        after_due := chunk.last_due;
        after_id := chunk.last_id;

        -- Pushes that follow one another leave a partition free for microseconds. Looking once would miss that again
        -- and again, so it looks for some milliseconds, in all; it does not wait.
        look_until := coalesce(look_until, clock_timestamp() + interval '5 milliseconds');
        locked := '{}';
        LOOP
            locked := locked || ARRAY(
                SELECT p.partition_id FROM penstock.partitions p
                WHERE p.partition_id = ANY (chunk.places) AND p.partition_id <> ALL (locked)
                ORDER BY p.partition_id
                FOR NO KEY UPDATE SKIP LOCKED
            );
            EXIT WHEN cardinality(locked) = cardinality(chunk.places) OR clock_timestamp() > look_until;
        END LOOP;
        -- A group that is being created would not see these messages: they are left to the next sweep.
        quiet := ARRAY(
            SELECT q.queue_id
            FROM (SELECT DISTINCT p.queue_id FROM penstock.partitions p WHERE p.partition_id = ANY (locked)) q
            WHERE pg_try_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id)
        );
        locked := ARRAY(
            SELECT p.partition_id FROM penstock.partitions p
            WHERE p.partition_id = ANY (locked) AND p.queue_id = ANY (quiet)
        );
        WITH due AS MATERIALIZED (
            SELECT s.scheduled_id FROM penstock.scheduled s
            WHERE s.scheduled_id = ANY (chunk.ids) AND s.partition_id = ANY (locked)
            FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM penstock.scheduled s
            WHERE s.scheduled_id = ANY (ARRAY(SELECT d.scheduled_id FROM due d))
            RETURNING s.*
        )
        SELECT
            count(*) AS rows, sum(g.bytes) AS bytes,
            array_agg(g.partition_id ORDER BY g.due_at, g.scheduled_id) AS targets,
            array_agg(g.count ORDER BY g.due_at, g.scheduled_id) AS counts,
            array_agg(g.body ORDER BY g.due_at, g.scheduled_id) AS bodies,
            array_agg(g.ends ORDER BY g.due_at, g.scheduled_id) AS ends,
            array_agg(g.keys ORDER BY g.due_at, g.scheduled_id) AS keys,
            array_agg(g.key_ends ORDER BY g.due_at, g.scheduled_id) AS key_ends,
            array_agg(g.headers ORDER BY g.due_at, g.scheduled_id) AS headers,
            array_agg(g.header_ends ORDER BY g.due_at, g.scheduled_id) AS header_ends,
            array_agg(g.scheduled_id ORDER BY g.due_at, g.scheduled_id) AS ids,
            -- As JSON: an array of arrays would have to be square.
            array_agg(array_to_json(g.dedupe_ids) ORDER BY g.due_at, g.scheduled_id) AS dedupe_ids,
            array_agg(array_to_json(g.dedupe_positions) ORDER BY g.due_at, g.scheduled_id) AS dedupe_positions
        INTO taken
        FROM gone g;
        complete := complete AND taken.rows = chunk.visited;
        IF taken.rows > 0 THEN
            published := published + taken.rows;
            written := written + taken.bytes;
            -- A new statement, hence a new snapshot: under the locks it sees every segment there is.
            SELECT array_agg(a.first_offset ORDER BY a.nth) AS offsets, array_agg(a.created_at ORDER BY a.nth) AS times
            INTO stored
            FROM penstock.append_segments(
                taken.targets, taken.counts, taken.bodies, taken.ends,
                taken.keys, taken.key_ends, taken.headers, taken.header_ends
            ) WITH ORDINALITY a (partition_id, first_offset, message_count, created_at, nth);
            UPDATE penstock.dedupe_ids k
            SET seen_at = i.created_at, message_offset = i.message_offset, scheduled_id = NULL
            FROM (
                SELECT
                    u.target, u.created_at, u.scheduled_id, u.first_offset + p.position::integer AS message_offset,
                    d.dedupe_id
                FROM unnest(
                    taken.targets, taken.ids, stored.offsets, stored.times, taken.dedupe_ids, taken.dedupe_positions
                ) u (target, scheduled_id, first_offset, created_at, dedupe_ids, dedupe_positions)
                CROSS JOIN LATERAL json_array_elements_text(u.dedupe_ids) WITH ORDINALITY d (dedupe_id, n)
                JOIN LATERAL json_array_elements_text(u.dedupe_positions) WITH ORDINALITY p (position, n) ON p.n = d.n
            ) i
            WHERE k.partition_id = i.target AND k.dedupe_id = i.dedupe_id AND k.scheduled_id = i.scheduled_id;
        END IF;
        IF published >= max_rows OR written >= most_bytes THEN
            complete := false;
            EXIT;
        END IF;
    END LOOP;
    next_due := (
        SELECT s.due_at FROM penstock.scheduled s WHERE s.due_at > now_here AND s.due_at < soon ORDER BY s.due_at LIMIT 1
    );
END
$$;

-- penstock.pushed_before(producer, sequence)
--
-- Returns the answer to an earlier push with the same producer and sequence.
--
-- Parameters: those of push_segments.
-- Returns: one row per segment, in the order given; no row if there was no such push.
-- Calls: nothing. Tables: producers (read).
CREATE OR REPLACE FUNCTION penstock.pushed_before(producer uuid, sequence bigint)
RETURNS TABLE (partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz)
LANGUAGE sql STABLE
AS $$
    SELECT u.partition_id, u.first_offset, u.count, u.created_at
    FROM penstock.producers d
    CROSS JOIN LATERAL unnest(
        coalesce(d.partition_ids, ARRAY[d.partition_id]), coalesce(d.first_offsets, ARRAY[d.first_offset]),
        coalesce(d.counts, ARRAY[d.count]), coalesce(d.times, ARRAY[d.pushed_at])
    ) WITH ORDINALITY u (partition_id, first_offset, count, created_at, nth)
    WHERE d.producer = pushed_before.producer AND d.sequence = pushed_before.sequence AND d.answer IS NULL
    ORDER BY u.nth
$$;

-- penstock.read_answer(answer)
--
-- Returns an answer of push_with_options as rows; it is stored as JSON, so that a repeated push gets the same answer.
--
-- Parameters: answer - an array of objects, one per segment.
-- Returns: one row per segment, in order.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.read_answer(answer jsonb)
RETURNS TABLE (
    partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz,
    scheduled_id bigint, due_at timestamptz,
    duplicate_positions integer[], duplicate_offsets bigint[], duplicate_times timestamptz[],
    duplicate_scheduled_ids bigint[]
)
LANGUAGE sql STABLE
AS $$
    SELECT * FROM jsonb_to_recordset(answer) AS r (
        partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz,
        scheduled_id bigint, due_at timestamptz,
        duplicate_positions integer[], duplicate_offsets bigint[], duplicate_times timestamptz[],
        duplicate_scheduled_ids bigint[]
    )
$$;

-- penstock.refuse_full(partition_name)
--
-- Raises the error that a partition has reached offset_limit.
--
-- Parameters: partition_name.
-- Returns: never; raises program_limit_exceeded.
-- Calls: offset_limit. Tables: none.
CREATE OR REPLACE FUNCTION penstock.refuse_full(partition_name text)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'partition "%" is full: it has had % messages', partition_name, penstock.offset_limit()
        USING ERRCODE = 'program_limit_exceeded', HINT = 'Push to another partition.';
END
$$;

-- penstock.require_dedupe_ids(targets, counts, dedupe_ids)
--
-- Raises an error if a dedupe id cannot be stored, or if its queue has no dedupe_window.
--
-- Parameters: a partition id and a count per segment; an entry per message, null for none.
-- Returns: nothing; raises invalid_parameter_value.
-- Calls: nothing. Tables: queues, partitions (read).
CREATE OR REPLACE FUNCTION penstock.require_dedupe_ids(targets bigint[], counts integer[], dedupe_ids text[])
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    lacking text;
    wrong   text;
BEGIN
    IF cardinality(dedupe_ids) <> (SELECT sum(c) FROM unnest(counts) c) THEN
        RAISE EXCEPTION '% messages require as many dedupe ids, null for none, but there are %',
            (SELECT sum(c) FROM unnest(counts) c), cardinality(dedupe_ids)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT d INTO wrong FROM unnest(dedupe_ids) d WHERE octet_length(d) NOT BETWEEN 1 AND 255 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'a dedupe id must have 1 to 255 bytes and this one has %', octet_length(wrong)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT q.name INTO lacking
    FROM (
        SELECT u.target, u.count, sum(u.count) OVER (ORDER BY u.segment) - u.count AS before
        FROM unnest(targets, counts) WITH ORDINALITY u (target, count, segment)
    ) s
    CROSS JOIN LATERAL (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = s.target LIMIT 1) p
    JOIN penstock.queues q ON q.queue_id = p.queue_id
    WHERE (q.settings ->> 'dedupe_window')::numeric = 0
      AND num_nonnulls(VARIADIC dedupe_ids[s.before + 1 : s.before + s.count]) > 0
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'queue "%" does not look at dedupe ids: its dedupe_window is 0', lacking
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format(
                      'Set the seconds for which an id counts: penstock configure %s --set dedupe_window=3600', lacking
                  );
    END IF;
END
$$;

-- penstock.require_due(delay, due_at)
--
-- Raises an error if a delay or a due time is out of range.
--
-- Parameters: delay - seconds, or null; due_at - a time, or null. At most one of them.
-- Returns: nothing; raises invalid_parameter_value.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_due(delay float8, due_at timestamptz)
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF delay IS NOT NULL AND due_at IS NOT NULL THEN
        RAISE EXCEPTION 'a message can have a delay or a due time, but not both' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF delay NOT BETWEEN 0 AND 3155760000 THEN
        RAISE EXCEPTION 'delay is % but must be from 0 to 3155760000 seconds', delay
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT isfinite(due_at) OR due_at > clock_timestamp() + interval '100 years' THEN
        RAISE EXCEPTION 'due time is % but must be within a hundred years from now', due_at
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

-- penstock.trim_dedupe_ids(max_rows)
--
-- Deletes dedupe ids that are older than their window. They have no effect any more, so this may come late. Waits for
-- nobody.
--
-- Parameters: max_rows - the largest number.
-- Returns: the number deleted; call it again until it is less than max_rows.
-- Calls: nothing. Tables: queues (read), dedupe_ids (delete).
CREATE OR REPLACE FUNCTION penstock.trim_dedupe_ids(max_rows integer DEFAULT 1000)
RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    queue   record;
    trimmed integer := 0;
    found   integer;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM penstock.dedupe_ids) THEN
        RETURN 0;
    END IF;
    FOR queue IN
        SELECT q.queue_id, make_interval(secs => (q.settings ->> 'dedupe_window')::numeric::float8) AS dedupe_window
        FROM penstock.queues q
    LOOP
        DELETE FROM penstock.dedupe_ids k
        WHERE k.ctid = ANY (ARRAY(
            SELECT k.ctid FROM penstock.dedupe_ids k
            WHERE k.queue_id = queue.queue_id AND k.seen_at <= clock_timestamp() - queue.dedupe_window
            ORDER BY k.seen_at
            LIMIT max_rows - trimmed
            FOR UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS found = ROW_COUNT;
        trimmed := trimmed + found;
        EXIT WHEN trimmed >= max_rows;
    END LOOP;
    RETURN trimmed;
END
$$;

-- penstock.trim_producers(max_rows)
--
-- Deletes answers to pushes that are more than an hour old: they are not repeated any more. Waits for nobody.
--
-- Parameters: max_rows - the largest number.
-- Returns: the number deleted; call it again while it is max_rows.
-- Calls: nothing. Tables: producers (delete).
CREATE OR REPLACE FUNCTION penstock.trim_producers(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    trimmed integer;
BEGIN
    DELETE FROM penstock.producers d
    WHERE d.ctid = ANY (ARRAY(
        SELECT d.ctid FROM penstock.producers d
        WHERE d.pushed_at < clock_timestamp() - interval '1 hour'
        ORDER BY d.pushed_at
        LIMIT max_rows
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS trimmed = ROW_COUNT;
    RETURN trimmed;
END
$$;

-- penstock.trim_pushes(max_rows)
--
-- Deletes what pushes left behind: dedupe ids that are older than their window, and answers to pushes that are not
-- repeated any more.
--
-- Parameters: max_rows - the largest number of rows of each.
-- Returns: the larger of the two numbers; call again while it is max_rows.
-- Calls: trim_dedupe_ids, trim_producers. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.trim_pushes(max_rows integer)
RETURNS integer
LANGUAGE sql
AS $$
    SELECT greatest(penstock.trim_dedupe_ids(max_rows), penstock.trim_producers(max_rows))
$$;

-- penstock.forget_stages(stage_ids)
--
-- Deletes stages whose segments were published or removed. The caller holds their locks.
--
-- Parameters: stage_ids.
-- Returns: nothing.
-- Calls: nothing. Tables: stages, staged, staged_dead_letters (delete).
CREATE OR REPLACE FUNCTION penstock.forget_stages(stage_ids bigint[])
RETURNS void
LANGUAGE sql
AS $$
    DELETE FROM penstock.staged s WHERE s.stage_id = ANY (stage_ids);
    DELETE FROM penstock.staged_dead_letters d WHERE d.stage_id = ANY (stage_ids);
    DELETE FROM penstock.stages s WHERE s.stage_id = ANY (stage_ids);
$$;

-- penstock.lock_stage(stage)
--
-- Locks a stage until the transaction ends, so that whoever publishes or aborts it sees what is written to it now.
--
-- Parameters: stage - its id.
-- Returns: nothing; raises object_not_in_prerequisite_state if the stage is gone, and insufficient_privilege if it belongs
-- to another user.
-- Calls: require_own_writer. Tables: stages (lock).
CREATE OR REPLACE FUNCTION penstock.lock_stage(stage bigint)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    writer text;
BEGIN
    SELECT s.writer INTO writer FROM penstock.stages s WHERE s.stage_id = stage FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stage % is gone: another attempt was published, or it was given up', stage
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM penstock.require_own_writer(writer);
END
$$;

-- penstock.publish_segments(stage_ids)
--
-- Assigns partitions and offsets to staged segments. The caller holds the locks of the stages and removes them. The
-- cost is per segment; the payload is not touched.
--
-- Parameters: stage_ids - in the order of their messages.
-- Returns: the number of segments and messages.
-- Calls: lock_partitions, wake_partitions, newest_segment. Tables: staged (read), segments (update).
CREATE OR REPLACE FUNCTION penstock.publish_segments(stage_ids bigint[], OUT segments bigint, OUT messages bigint)
LANGUAGE plpgsql
SET enable_bitmapscan = off
AS $$
DECLARE
    queues       text[];
    names        text[];
    targets      bigint[];
    now_here     timestamptz;
    heads        bigint[];
    times        timestamptz[];
    ends         bigint[];
    place_of     jsonb;
    part         record;
    counts       integer[];
    places       integer[];
    base_offsets bigint[];
    moved        bigint;
BEGIN
    -- Every partition once. Below it is known by its position in these arrays.
    SELECT
        array_agg(d.queue_name ORDER BY d.partition_name COLLATE "C", d.queue_name COLLATE "C"),
        array_agg(d.partition_name ORDER BY d.partition_name COLLATE "C", d.queue_name COLLATE "C")
    INTO queues, names
    FROM (
        SELECT DISTINCT u.queue_name, u.partition_name
        FROM penstock.staged s
        CROSS JOIN LATERAL unnest(s.queue_names, s.partition_names) u (queue_name, partition_name)
        WHERE s.stage_id = ANY (stage_ids)
    ) d;
    segments := 0;
    IF queues IS NULL THEN
        messages := 0;
        RETURN;
    END IF;
    targets := penstock.lock_partitions(queues, names);

    -- A new statement, hence a new snapshot: under the locks it sees every segment there is.
    now_here := clock_timestamp();
    SELECT
        array_agg(coalesce(newest.head_offset, 0) ORDER BY w.position),
        array_agg(greatest(now_here, newest.created_at) ORDER BY w.position)
    INTO heads, times
    FROM unnest(targets) WITH ORDINALITY w (target, position)
    LEFT JOIN LATERAL penstock.newest_segment(w.target) newest ON true;
    ends := heads;
    -- A join by name would compare each segment with each partition whenever the planner takes them for few, and it
    -- knows neither number. No name holds a control character, so one keeps two names apart.
    place_of := (
        SELECT jsonb_object_agg(w.queue_name || chr(1) || w.partition_name, w.position)
        FROM unnest(queues, names) WITH ORDINALITY w (queue_name, partition_name, position)
    );
    FOR part IN
        SELECT s.*
        FROM unnest(stage_ids) WITH ORDINALITY w (stage_id, position)
        JOIN penstock.staged s ON s.stage_id = w.stage_id
        ORDER BY w.position, s.first_ordinal
    LOOP
        counts := part.counts;
        places := ARRAY(
            SELECT (place_of ->> (u.queue_name || chr(1) || u.partition_name))::integer
            FROM unnest(part.queue_names, part.partition_names) WITH ORDINALITY u (queue_name, partition_name, position)
            ORDER BY u.position
        );
        base_offsets := places;
        FOR number IN 1..cardinality(places) LOOP
            base_offsets[number] := ends[places[number]];
            ends[places[number]] := ends[places[number]] + counts[number];
        END LOOP;
        -- One range of the index, whatever the planner believes of the table.
        UPDATE penstock.segments g
        SET
            partition_id = targets[places[g.base_offset - part.first_ordinal + 1]],
            base_offset = base_offsets[g.base_offset - part.first_ordinal + 1],
            created_at = times[places[g.base_offset - part.first_ordinal + 1]]
        WHERE g.partition_id = -part.stage_id
          AND g.base_offset >= part.first_ordinal AND g.base_offset < part.first_ordinal + cardinality(places);
        GET DIAGNOSTICS moved = ROW_COUNT;
        IF moved <> cardinality(places) THEN
            RAISE EXCEPTION 'stage % has % segments from % on, and should have %',
                part.stage_id, moved, part.first_ordinal, cardinality(places) USING ERRCODE = 'data_corrupted';
        END IF;
        segments := segments + moved;
    END LOOP;
    messages := (SELECT sum(e) FROM unnest(ends) e) - (SELECT sum(h) FROM unnest(heads) h);
    PERFORM penstock.wake_partitions(targets, heads);
END
$$;

-- penstock.register_run(writer, run)
--
-- Assigns a number to a run of a writer when it is first seen: a later run has a higher one.
--
-- Parameters: writer - the query's id; run - the id of this start of it.
-- Returns: the number.
-- Calls: require_own_writer. Tables: sink_runs (insert).
CREATE OR REPLACE FUNCTION penstock.register_run(writer text, run text)
RETURNS bigint
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    number bigint;
BEGIN
    PERFORM penstock.require_own_writer(register_run.writer);
    LOOP
        SELECT r.run_number INTO number FROM penstock.sink_runs r
        WHERE r.writer = register_run.writer AND r.run = register_run.run;
        IF FOUND THEN
            RETURN number;
        END IF;
        INSERT INTO penstock.sink_runs (writer, run) VALUES (register_run.writer, register_run.run)
        ON CONFLICT DO NOTHING;
    END LOOP;
END
$$;

-- penstock.remove_stages(stage_ids)
--
-- Removes stages with their segments. A stage that somebody is writing to is skipped; sweep_stages removes it later.
--
-- Parameters: stage_ids.
-- Returns: the number removed.
-- Calls: forget_stages. Tables: stages (lock), segments (delete).
CREATE OR REPLACE FUNCTION penstock.remove_stages(stage_ids bigint[])
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    locked bigint[] := ARRAY(
        SELECT s.stage_id FROM penstock.stages s
        WHERE s.stage_id = ANY (stage_ids)
        ORDER BY s.stage_id
        FOR UPDATE SKIP LOCKED
    );
BEGIN
    -- A new statement: under the locks it sees every segment there is.
    DELETE FROM penstock.segments s USING unnest(locked) l (stage_id) WHERE s.partition_id = -l.stage_id;
    PERFORM penstock.forget_stages(locked);
    RETURN cardinality(locked);
END
$$;

-- penstock.require_own_writer(writer)
--
-- Raises an error if a writer belongs to another user: a newer run replaces the older ones, so others may not begin,
-- publish or abort for it. A member of the other user's role may, and so may an admin.
--
-- Parameters: writer - the query's id.
-- Returns: nothing; raises insufficient_privilege.
-- Calls: is_admin. Tables: sink_runs (read).
CREATE OR REPLACE FUNCTION penstock.require_own_writer(writer text)
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    other name := (
        SELECT r.owner FROM penstock.sink_runs r
        WHERE r.writer = require_own_writer.writer AND r.owner <> session_user
        ORDER BY r.run_number DESC
        LIMIT 1
    );
BEGIN
    -- A user who was dropped since has no say.
    IF other IS NOT NULL AND EXISTS (
        SELECT 1 FROM pg_roles p WHERE p.rolname = other AND NOT pg_has_role(session_user, p.oid, 'MEMBER')
    ) AND NOT penstock.is_admin() THEN
        RAISE EXCEPTION 'permission denied: query % is written by user "%"', writer, other
            USING ERRCODE = 'insufficient_privilege', HINT = 'Run it as that user, or once as an admin.';
    END IF;
END
$$;

-- penstock.end_waits(target_groups)
--
-- Makes partitions that wait for a delay or a quiet period due now, because that setting has changed: the next sweep
-- puts them in the ready list, or lets them wait by the new setting. Partitions that wait after a failure are not
-- changed.
--
-- Parameters: target_groups - group ids.
-- Returns: nothing.
-- Calls: nothing. Tables: journal (update).
CREATE OR REPLACE FUNCTION penstock.end_waits(target_groups integer[])
RETURNS void
LANGUAGE sql
AS $$
    UPDATE penstock.journal j
    SET due_at = clock_timestamp()
    WHERE j.ctid = ANY (ARRAY(
        SELECT w.ctid FROM penstock.journal w
        WHERE w.due_at > clock_timestamp() AND w.state = 't' AND w.attempt = 0 AND w.group_id = ANY (target_groups)
        -- What somebody holds right now is going on to its next state.
        FOR UPDATE SKIP LOCKED
    ))
$$;

-- penstock.enrol_partitions(target_group, max_partitions, creating)
--
-- Enrols partitions in a new group: puts those with messages for it in the ready list, oldest first. A partition that
-- somebody is pushing to is skipped (that push sees the group and puts the partition in the ready list itself, unless
-- it rolls back); then another round follows, until none was skipped.
--
-- A push that does not see the group has held the shared lock of the queue since before the group was committed. The
-- transactions that hold it when the group is first seen here are awaited: the last round begins after all of them
-- have ended. Until one of them ends, there is nothing new to see.
--
-- Parameters: max_partitions - the number of partitions to visit; creating - whether this is the transaction that
-- creates the group. Then nobody else sees the group, so nobody else can enrol a partition in it.
-- Returns: the number of partitions put in the ready list.
-- Calls: wake_partitions, partition_span, queue_lock_class. Tables: consumer_groups (update), partitions (lock),
-- journal (read).
CREATE OR REPLACE FUNCTION penstock.enrol_partitions(
    target_group integer, max_partitions integer, creating boolean DEFAULT false
)
RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    enrolling  record;
    holding    text[];
    waited_for text[];
    visited    bigint[];
    locked     bigint[];
    waking     bigint[];
    passed     boolean;
BEGIN
    SELECT
        g.queue_id, g.enrolled_to, g.enrol_again, g.awaited,
        coalesce(g.from_time, CASE WHEN g.subscription = 'new' THEN g.created_at END) AS from_time
    INTO enrolling
    FROM penstock.consumer_groups g
    WHERE g.group_id = target_group AND g.enrolled_to IS NOT NULL
      AND (creating OR g.created_in IS DISTINCT FROM pg_current_xact_id_if_assigned())
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    waited_for := enrolling.awaited;
    -- When a round begins, and not within it: the last one must begin after all of them have ended.
    IF NOT creating AND enrolling.enrolled_to = 0 AND (waited_for IS NULL OR waited_for <> '{}') THEN
        holding := ARRAY(
            SELECT l.virtualtransaction FROM pg_locks l
            WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
              AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
              AND l.classid = penstock.queue_lock_class()::oid AND l.objid = enrolling.queue_id::oid
        );
        -- A transaction that was prepared meanwhile holds the lock under another id, so all prepared ones are awaited.
        waited_for := CASE WHEN enrolling.awaited IS NULL THEN holding ELSE ARRAY(
            SELECT h FROM unnest(holding) h WHERE h = ANY (enrolling.awaited) OR h LIKE '-1/%'
        ) END;
        IF waited_for <> '{}' AND waited_for = enrolling.awaited AND NOT enrolling.enrol_again THEN
            RETURN 0;
        END IF;
    END IF;
    visited := ARRAY(
        SELECT p.partition_id FROM penstock.partitions p
        WHERE p.queue_id = enrolling.queue_id AND p.partition_id > enrolling.enrolled_to AND p.lane_of IS NULL
        ORDER BY p.partition_id
        LIMIT max_partitions
    );
    IF creating THEN
        -- A sweep for another group may hold some; the first pop of this group must not be empty because of that.
        locked := ARRAY(
            SELECT p.partition_id FROM penstock.partitions p
            WHERE p.partition_id = ANY (visited)
            FOR KEY SHARE SKIP LOCKED
        );
    ELSE
        locked := ARRAY(
            SELECT p.partition_id FROM penstock.partitions p
            WHERE p.partition_id = ANY (visited)
            ORDER BY p.partition_id
            FOR NO KEY UPDATE SKIP LOCKED
        );
    END IF;
    -- In a statement of its own, so that what was pushed before the lock is seen.
    waking := ARRAY(
        SELECT l.partition_id
        FROM unnest(locked) l (partition_id)
        CROSS JOIN LATERAL penstock.partition_span(l.partition_id) s
        WHERE s.head_offset > s.floor_offset
          AND (enrolling.from_time IS NULL OR s.newest_at >= enrolling.from_time)
          AND NOT EXISTS (
              SELECT 1 FROM penstock.journal j
              WHERE j.group_id = target_group AND j.partition_id = l.partition_id
          )
        ORDER BY l.partition_id
    );
    PERFORM penstock.wake_partitions(waking, NULL, target_group);
    passed := cardinality(locked) < cardinality(visited) OR enrolling.enrol_again AND enrolling.enrolled_to > 0;
    UPDATE penstock.consumer_groups g
    SET enrolled_to = CASE
            WHEN creating THEN 0
            WHEN cardinality(visited) = max_partitions THEN visited[max_partitions]
            WHEN passed OR waited_for <> '{}' THEN 0
        END,
        enrol_again = passed,
        awaited = waited_for
    WHERE g.group_id = target_group;
    RETURN cardinality(waking);
END
$$;

-- penstock.is_put_off(kind, target_group, target, place)
--
-- Returns whether a timer has failed and waits for its next try.
--
-- Parameters: those of serve_timer.
-- Returns: whether it is in failing_timers.
-- Calls: nothing. Tables: failing_timers (read).
CREATE OR REPLACE FUNCTION penstock.is_put_off(kind text, target_group integer, target bigint, place bigint)
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT 1 FROM penstock.failing_timers f
        WHERE f.kind = is_put_off.kind AND f.group_id = target_group AND f.partition_id = target
          AND f.place = is_put_off.place
    )
$$;

-- penstock.put_off(kind, target_group, target, place, state, problem)
--
-- Postpones a timer that failed: by a second, and twice as long after each further failure, ten minutes at most.
--
-- Parameters: those of serve_timer; state and problem - the SQLSTATE and the text of the error.
-- Returns: nothing.
-- Calls: nothing. Tables: failing_timers (insert, update).
CREATE OR REPLACE FUNCTION penstock.put_off(
    kind text, target_group integer, target bigint, place bigint, state text, problem text
)
RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO penstock.failing_timers AS f (kind, group_id, partition_id, place, retry_at, sqlstate, error)
    VALUES (
        put_off.kind, target_group, target, put_off.place, clock_timestamp() + interval '1 second', state, left(problem, 1000)
    )
    ON CONFLICT ON CONSTRAINT failing_timers_pkey DO UPDATE
    SET failures = f.failures + 1,
        retry_at = clock_timestamp() + least(interval '10 minutes', interval '1 second' * power(2, least(f.failures, 20))),
        sqlstate = EXCLUDED.sqlstate, error = EXCLUDED.error
$$;

-- penstock.retry_timers(max_rows)
--
-- Tries postponed timers again when they are due, each in a subtransaction, and deletes from failing_timers those
-- that succeed or no longer exist. A timer also no longer exists if another claim begins at the same place. After two
-- seconds no more are tried.
--
-- Parameters: max_rows - the largest number to try.
-- Returns: the number fired.
-- Calls: try_timer. Tables: failing_timers (delete), journal, claims, late_wakeups, consumer_groups, scheduled
-- (read).
CREATE OR REPLACE FUNCTION penstock.retry_timers(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    timer  record;
    served integer := 0;
    until  timestamptz := clock_timestamp() + interval '2 seconds';
BEGIN
    DELETE FROM penstock.failing_timers f
    WHERE CASE f.kind
        WHEN 'journal' THEN (
            SELECT max(j.version) FROM penstock.journal j WHERE j.group_id = f.group_id AND j.partition_id = f.partition_id
        ) IS DISTINCT FROM f.place
        WHEN 'claim' THEN NOT EXISTS (
            SELECT 1 FROM penstock.claims c
            WHERE c.group_id = f.group_id AND c.partition_id = f.partition_id AND c.lo = f.place
              AND c.claimed_at <= f.since
        )
        WHEN 'late_wakeup' THEN NOT EXISTS (
            SELECT 1 FROM penstock.late_wakeups w WHERE w.partition_id = f.partition_id AND w.base_offset = f.place
        )
        WHEN 'enrolment' THEN NOT EXISTS (
            SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = f.group_id AND g.enrolled_to IS NOT NULL
        )
        WHEN 'scheduled' THEN NOT EXISTS (SELECT 1 FROM penstock.scheduled s WHERE s.scheduled_id = f.place)
        ELSE false
    END;
    FOR timer IN
        SELECT f.kind, f.group_id, f.partition_id, f.place FROM penstock.failing_timers f
        WHERE f.retry_at <= clock_timestamp() AND f.kind NOT IN ('sweep', 'maintenance')
        ORDER BY f.retry_at
        LIMIT max_rows
    LOOP
        IF penstock.try_timer(timer.kind, timer.group_id, timer.partition_id, timer.place) THEN
            DELETE FROM penstock.failing_timers f
            WHERE f.kind = timer.kind AND f.group_id = timer.group_id AND f.partition_id = timer.partition_id
              AND f.place = timer.place;
            served := served + 1;
        END IF;
        EXIT WHEN clock_timestamp() > until;
    END LOOP;
    RETURN served;
END
$$;

-- penstock.serve_timer(kind, target_group, target, place)
--
-- Fires one timer that is due, as the sweep does.
--
-- Parameters: kind - 'journal' (a row of the journal; place is its version), 'claim' (a range of a shared group;
-- place is its first offset), 'late_wakeup' (place is the first offset that was pushed), 'enrolment' (of a group) or
-- 'scheduled' (place is its id); target_group and target - group and partition, 0 for none.
-- Returns: whether it was fired; false if a lock was not available, or if the state has changed already.
-- Calls: sweep_timer, offer_range, fail_range, wake_partitions, enrol_partitions, publish_scheduled. Tables: journal
-- (read), claims, late_wakeups (delete), partitions (lock).
CREATE OR REPLACE FUNCTION penstock.serve_timer(kind text, target_group integer, target bigint, place bigint)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    held penstock.claims;
BEGIN
    CASE kind
        WHEN 'journal' THEN
            RETURN coalesce((
                SELECT penstock.sweep_timer(j.group_id, j.partition_id, j.version, j.state)
                FROM penstock.journal j
                WHERE j.group_id = target_group AND j.partition_id = target AND j.version = place
            ), false);
        WHEN 'claim' THEN
            DELETE FROM penstock.claims c
            WHERE c.ctid = ANY (ARRAY(
                SELECT c.ctid FROM penstock.claims c
                WHERE c.group_id = target_group AND c.partition_id = target AND c.lo = place
                  AND c.due_at <= clock_timestamp()
                FOR UPDATE SKIP LOCKED
            ))
            RETURNING c.* INTO held;
            IF NOT FOUND THEN
                RETURN false;
            END IF;
            IF held.lease_id IS NULL THEN
                PERFORM penstock.offer_range(held, held.lo, held.hi, held.attempt, held.first_error, held.last_error);
            ELSE
                PERFORM penstock.fail_range(held, NULL, 'the lease expired', 'lease expired', 0);
            END IF;
        WHEN 'late_wakeup' THEN
            PERFORM 1 FROM penstock.partitions p WHERE p.partition_id = target FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN false;
            END IF;
            PERFORM penstock.wake_partitions(ARRAY[target], ARRAY[place]);
            DELETE FROM penstock.late_wakeups w WHERE w.partition_id = target AND w.base_offset = place;
        WHEN 'enrolment' THEN
            PERFORM penstock.enrol_partitions(target_group, 1000);
        WHEN 'scheduled' THEN
            RETURN (
                SELECT p.published > 0
                FROM penstock.publish_scheduled(1, '-infinity', '-infinity', false, place) p
            );
    END CASE;
    RETURN true;
END
$$;

-- penstock.sweep_apart(max_rows, since)
--
-- Fires the timers that are due one after the other, each in a subtransaction, so that one that fails does not hold
-- up others. The sweep calls it after it has failed as a whole, and holds the sweep's lock. After two seconds it
-- fires only one more of each kind.
--
-- Parameters: those of sweep; max_rows - of each kind of timer.
-- Returns: the number fired, and the number that failed.
-- Calls: is_put_off, try_timer. Tables: journal, claims, late_wakeups, consumer_groups, scheduled (read).
CREATE OR REPLACE FUNCTION penstock.sweep_apart(
    max_rows integer, since timestamptz, OUT woken integer, OUT failed integer
)
LANGUAGE plpgsql
AS $$
DECLARE
    now_here timestamptz := clock_timestamp();
    timer    record;
    served   boolean;
    until    timestamptz := now_here + interval '2 seconds';
    last     text;
BEGIN
    woken := 0;
    failed := 0;
    FOR timer IN
        SELECT * FROM (
            SELECT 'journal' AS kind, j.group_id, j.partition_id, j.version AS place
            FROM penstock.journal j
            WHERE j.due_at > since AND j.due_at <= now_here AND NOT EXISTS (
                SELECT 1 FROM penstock.journal n
                WHERE n.group_id = j.group_id AND n.partition_id = j.partition_id AND n.version > j.version
            ) AND NOT penstock.is_put_off('journal', j.group_id, j.partition_id, j.version)
            ORDER BY j.due_at
            LIMIT max_rows
        ) j
        UNION ALL
        SELECT * FROM (
            SELECT 'claim', c.group_id, c.partition_id, c.lo
            FROM penstock.claims c
            WHERE c.due_at > since AND c.due_at <= now_here
              AND NOT penstock.is_put_off('claim', c.group_id, c.partition_id, c.lo)
            ORDER BY c.due_at
            LIMIT max_rows
        ) c
        UNION ALL
        SELECT * FROM (
            SELECT 'late_wakeup', 0, w.partition_id, w.base_offset
            FROM penstock.late_wakeups w
            WHERE NOT penstock.is_put_off('late_wakeup', 0, w.partition_id, w.base_offset)
            ORDER BY w.partition_id, w.base_offset
            LIMIT max_rows
        ) w
        UNION ALL
        SELECT 'enrolment', g.group_id, 0, 0 FROM penstock.consumer_groups g
        WHERE g.enrolled_to IS NOT NULL AND NOT penstock.is_put_off('enrolment', g.group_id, 0, 0)
        UNION ALL
        SELECT * FROM (
            SELECT 'scheduled', 0, s.partition_id, s.scheduled_id
            FROM penstock.scheduled s
            WHERE s.due_at > since AND s.due_at <= now_here
              AND NOT penstock.is_put_off('scheduled', 0, s.partition_id, s.scheduled_id)
            ORDER BY s.due_at, s.scheduled_id
            LIMIT max_rows
        ) s
    LOOP
        CONTINUE WHEN timer.kind = last AND clock_timestamp() > until;
        last := timer.kind;
        served := penstock.try_timer(timer.kind, timer.group_id, timer.partition_id, timer.place);
        woken := woken + coalesce(served, false)::integer;
        failed := failed + (served IS NULL)::integer;
    END LOOP;
END
$$;

-- penstock.sweep_timer(target_group, target, timer_version, timer_state)
--
-- Fires one timer of the journal: the partition changes to its next state, unless somebody else is changing it.
--
-- Parameters: the journal row that has the timer.
-- Returns: whether it was fired; false if a lock was not available, or if the state has changed already: a later
-- sweep tries again.
-- Calls: fail_claim, append_state, deliverable, newest_state. Tables: journal, partitions (lock), queues,
-- consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.sweep_timer(
    target_group integer, target bigint, timer_version bigint, timer_state "char"
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    newest penstock.journal;
    ready  record;
BEGIN
    -- Who may append the next row: for a parked partition the holder of its lock, else that of the newest row's.
    IF timer_state = 'p' THEN
        PERFORM 1 FROM penstock.partitions p WHERE p.partition_id = target FOR NO KEY UPDATE SKIP LOCKED;
    ELSE
        PERFORM 1 FROM penstock.journal j
        WHERE j.group_id = target_group AND j.partition_id = target AND j.version = timer_version
        FOR UPDATE SKIP LOCKED;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A new statement, hence a new snapshot: look again under the lock.
    SELECT j.* INTO newest FROM penstock.newest_state(target_group, target) j;
    IF newest.version <> timer_version THEN
        RETURN false;
    END IF;

    IF timer_state = 'c' THEN
        PERFORM penstock.fail_claim(newest, NULL, 'the lease expired', 'lease expired', 0);
        RETURN true;
    END IF;
    SELECT d.* INTO ready
    FROM penstock.consumer_groups g
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    CROSS JOIN LATERAL penstock.deliverable(target, newest.committed, q.settings || g.config) d
    WHERE g.group_id = target_group;
    IF ready.head_offset <= newest.committed THEN
        -- Idle needs the partition's lock: a push in progress may have seen the old state and woken nobody.
        PERFORM penstock.append_state(
            newest, CASE WHEN timer_state = 'p' THEN 'i' ELSE 'p' END::"char", newest.committed,
            due_at => CASE WHEN timer_state <> 'p' THEN clock_timestamp() + interval '50 milliseconds' END
        );
    ELSIF ready.due_at IS NOT NULL THEN
        -- Pushed to in its quiet period, or the next message's delay is not over.
        PERFORM penstock.append_state(
            newest, 't', newest.committed, newest.attempt, newest.narrow_attempt, newest.narrow_to, ready.due_at,
            newest.first_error, newest.last_error
        );
    ELSE
        PERFORM penstock.append_state(
            newest, 'r', newest.committed, newest.attempt, newest.narrow_attempt, newest.narrow_to, NULL,
            newest.first_error, newest.last_error
        );
    END IF;
    RETURN true;
END
$$;

-- penstock.sweep_together(max_rows, since, passing, durable)
--
-- Fires all due timers in one piece: if one fails, all of them fail. The caller holds the sweep's lock.
--
-- A timer may take seconds: a dead letter of hundreds of megabytes does. After two seconds it fires one more of each
-- kind and ends, so that the work is committed before the caller's deadline; the next sweep continues from there.
--
-- Parameters: max_rows, since and durable as in sweep; passing - whether to skip timers that were postponed.
-- Returns: as sweep.
-- Calls: sweep_timer, fail_range, offer_range, wake_partitions, enrol_partitions, publish_scheduled, is_put_off.
-- Tables: journal, claims, late_wakeups (delete), partitions (lock), consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.sweep_together(
    max_rows integer, since timestamptz, passing boolean, durable boolean,
    OUT woken integer, OUT trimmed integer, OUT enrolled integer, OUT next_due timestamptz, OUT swept_to timestamptz
)
LANGUAGE plpgsql
AS $$
DECLARE
    now_here timestamptz := clock_timestamp();
    until    timestamptz := now_here + interval '2 seconds';
    -- Settled claims leave dead entries in what is to come, too: not further than this.
    soon     timestamptz := now_here + interval '10 seconds';
    first    record;
    timer    record;
    held     penstock.claims;
    visited  integer;
    ended    boolean := true;
    after_due timestamptz := since;
BEGIN
    woken := 0;
    enrolled := 0;
    trimmed := 0;
    -- Most sweeps find little: what there is not is not looked for again.
    SELECT
        (
            SELECT j.due_at FROM penstock.journal j WHERE j.due_at > since AND j.due_at < soon
            ORDER BY j.due_at LIMIT 1
        ) AS timer,
        (
            SELECT c.due_at FROM penstock.claims c WHERE c.due_at > since AND c.due_at < soon
            ORDER BY c.due_at LIMIT 1
        ) AS claim,
        (
            SELECT s.due_at FROM penstock.scheduled s WHERE s.due_at >= since AND s.due_at < soon
            ORDER BY s.due_at LIMIT 1
        ) AS scheduled,
        -- A second look is due within milliseconds: one that seems to be due later was parked before the clock went back.
        EXISTS (
            SELECT 1 FROM penstock.journal j WHERE j.state = 'p' AND j.due_at > now_here + interval '2 seconds'
        ) AS parked_later,
        EXISTS (SELECT 1 FROM penstock.late_wakeups w) AS late_wakeup,
        EXISTS (SELECT 1 FROM penstock.consumer_groups g WHERE g.enrolled_to IS NOT NULL) AS enrolling
    INTO first;
    swept_to := now_here - interval '2 seconds';
    -- In chunks, until enough was done: a chunk that is busy altogether must not hide those after it.
    WHILE first.timer <= now_here LOOP
        swept_to := NULL;
        -- Most timers are of claims that were settled long ago: those go all at once, with their predecessors. Rows
        -- with a timer of their own wait for it: that keeps every claim as history for its lease time.
        WITH due AS MATERIALIZED (
            SELECT j.group_id, j.partition_id, j.version, j.state FROM penstock.journal j
            WHERE j.due_at > after_due AND j.due_at <= now_here
            ORDER BY j.due_at
            LIMIT max_rows
        ), old AS MATERIALIZED (
            SELECT o.ctid
            FROM due d
            JOIN penstock.journal o ON o.group_id = d.group_id AND o.partition_id = d.partition_id
                AND o.version BETWEEN d.version - CASE WHEN d.state = 'c' THEN 8 ELSE 0 END AND d.version
                AND (o.version = d.version OR o.due_at IS NULL)
            WHERE EXISTS (
                SELECT 1 FROM penstock.journal n
                WHERE n.group_id = d.group_id AND n.partition_id = d.partition_id AND n.version > d.version
            )
            FOR UPDATE OF o SKIP LOCKED
        )
        DELETE FROM penstock.journal j WHERE j.ctid = ANY (ARRAY(SELECT o.ctid FROM old o));
        GET DIAGNOSTICS visited = ROW_COUNT;
        trimmed := trimmed + visited;
        visited := 0;
        FOR timer IN
            SELECT j.group_id, j.partition_id, j.version, j.state, j.due_at FROM penstock.journal j
            WHERE j.due_at > after_due AND j.due_at <= now_here
            ORDER BY j.due_at
            LIMIT max_rows
        LOOP
            visited := visited + 1;
            CONTINUE WHEN passing AND penstock.is_put_off('journal', timer.group_id, timer.partition_id, timer.version);
            IF penstock.sweep_timer(timer.group_id, timer.partition_id, timer.version, timer.state) THEN
                woken := woken + 1;
            END IF;
            ended := clock_timestamp() < until;
            EXIT WHEN NOT ended;
        END LOOP;
        IF visited < max_rows AND ended THEN
            -- What is being written now with an earlier time, or is locked, has these two seconds to become visible.
            swept_to := now_here - interval '2 seconds';
        END IF;
        EXIT WHEN NOT ended;
        EXIT WHEN visited < max_rows OR woken + trimmed >= max_rows;
        after_due := timer.due_at;
    END LOOP;
    IF first.parked_later THEN
        FOR timer IN
            SELECT j.group_id, j.partition_id, j.version FROM penstock.journal j
            WHERE j.state = 'p' AND j.due_at > now_here + interval '2 seconds'
            ORDER BY j.due_at
            LIMIT max_rows
        LOOP
            CONTINUE WHEN passing AND penstock.is_put_off('journal', timer.group_id, timer.partition_id, timer.version);
            IF penstock.sweep_timer(timer.group_id, timer.partition_id, timer.version, 'p') THEN
                woken := woken + 1;
            END IF;
            EXIT WHEN clock_timestamp() > until;
        END LOOP;
    END IF;
    IF first.claim <= now_here THEN
        visited := 0;
        FOR held IN
            SELECT c.* FROM penstock.claims c
            WHERE c.due_at > since AND c.due_at <= now_here
              AND NOT (passing AND penstock.is_put_off('claim', c.group_id, c.partition_id, c.lo))
            ORDER BY c.due_at
            LIMIT max_rows
            FOR UPDATE SKIP LOCKED
        LOOP
            DELETE FROM penstock.claims c
            WHERE c.group_id = held.group_id AND c.partition_id = held.partition_id AND c.lo = held.lo;
            IF held.lease_id IS NULL THEN
                PERFORM penstock.offer_range(held, held.lo, held.hi, held.attempt, held.first_error, held.last_error);
            ELSE
                PERFORM penstock.fail_range(held, NULL, 'the lease expired', 'lease expired', 0);
            END IF;
            woken := woken + 1;
            visited := visited + 1;
            ended := clock_timestamp() < until;
            EXIT WHEN NOT ended;
        END LOOP;
        IF visited >= max_rows OR NOT ended THEN
            swept_to := NULL;
        END IF;
    END IF;
    IF first.late_wakeup THEN
        FOR timer IN
            SELECT w.partition_id, w.base_offset FROM penstock.late_wakeups w
            JOIN penstock.partitions p ON p.partition_id = w.partition_id
            WHERE NOT (passing AND penstock.is_put_off('late_wakeup', 0, w.partition_id, w.base_offset))
            LIMIT max_rows
            FOR NO KEY UPDATE OF p SKIP LOCKED
        LOOP
            PERFORM penstock.wake_partitions(ARRAY[timer.partition_id], ARRAY[timer.base_offset]);
            DELETE FROM penstock.late_wakeups w
            WHERE w.partition_id = timer.partition_id AND w.base_offset = timer.base_offset;
            woken := woken + 1;
            EXIT WHEN clock_timestamp() > until;
        END LOOP;
    END IF;
    IF first.enrolling THEN
        FOR timer IN
            SELECT g.group_id FROM penstock.consumer_groups g
            WHERE g.enrolled_to IS NOT NULL AND NOT (passing AND penstock.is_put_off('enrolment', g.group_id, 0, 0))
            ORDER BY g.group_id
        LOOP
            enrolled := enrolled + penstock.enrol_partitions(timer.group_id, max_rows);
        END LOOP;
    END IF;
    next_due := least(first.timer, first.claim, first.scheduled);
    IF next_due <= now_here OR woken + enrolled > 0 THEN
        SELECT least(
            (SELECT j.due_at FROM penstock.journal j WHERE j.due_at > now_here AND j.due_at < soon ORDER BY j.due_at LIMIT 1),
            (SELECT c.due_at FROM penstock.claims c WHERE c.due_at > now_here AND c.due_at < soon ORDER BY c.due_at LIMIT 1),
            CASE WHEN first.scheduled > now_here THEN first.scheduled END
        ) INTO next_due;
    END IF;
    visited := 0;
    IF first.scheduled <= now_here THEN
        SELECT woken + p.published, least(sweep_together.next_due, p.next_due), CASE WHEN p.complete THEN swept_to END, p.published
        INTO woken, next_due, swept_to, visited
        FROM penstock.publish_scheduled(max_rows, since, soon, passing) p;
    END IF;
    -- A reader with positions of its own may have noted the offset of what was published: that must not be undone. Timers
    -- that were put off come later, and may publish, too.
    IF NOT durable AND visited = 0 AND NOT passing THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- penstock.trim_journal(target_group, target, up_to)
--
-- Deletes journal rows older than the newest one of a (group, partition). The sweep trims behind claims when their
-- lease would have ended; this function trims rows that have no such timer. Claims stay, as history. Rows that are
-- locked are left to the next call.
--
-- Parameters: up_to - the newest version to delete; the caller has appended a newer one.
-- Returns: nothing.
-- Calls: nothing. Tables: journal (delete).
CREATE OR REPLACE FUNCTION penstock.trim_journal(target_group integer, target bigint, up_to bigint)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM penstock.journal j
    WHERE j.ctid = ANY (ARRAY(
        SELECT o.ctid FROM penstock.journal o
        WHERE o.group_id = target_group AND o.partition_id = target
          AND o.version BETWEEN up_to - 8 AND up_to AND o.state <> 'c'
        FOR UPDATE SKIP LOCKED
    ));
END
$$;

-- penstock.try_timer(kind, target_group, target, place)
--
-- Fires one timer. If that fails, it is rolled back and the timer is postponed.
--
-- Parameters: those of serve_timer.
-- Returns: whether it was fired; null if it failed.
-- Calls: serve_timer, put_off. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.try_timer(kind text, target_group integer, target bigint, place bigint)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    problem text;
    state   text;
BEGIN
    BEGIN
        RETURN penstock.serve_timer(kind, target_group, target, place);
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
    END;
    PERFORM penstock.put_off(kind, target_group, target, place, state, problem);
    RETURN NULL;
END
$$;

-- penstock.decoded_headers(packed)
--
-- Decodes the headers of a message.
--
-- Parameters: packed - the bytes of one message's headers.
-- Returns: the headers; null for bytes that are not a JSON object of strings, or that jsonb cannot store.
-- Calls: nothing. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.decoded_headers(packed bytea)
RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    said jsonb;
BEGIN
    -- Not where it is declared: an exception there would pass the handler by.
    said := convert_from(packed, 'UTF8')::jsonb;
    IF jsonb_typeof(said) <> 'object' OR jsonb_path_exists(said, '$.* ? (@.type() != "string")') THEN
        RETURN NULL;
    END IF;
    RETURN said;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;

-- penstock.decoded_key(packed)
--
-- Decodes a key.
--
-- Parameters: packed - the bytes of one key.
-- Returns: the text; null for bytes that are not text, or that PostgreSQL's text cannot store.
-- Calls: nothing. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.decoded_key(packed bytea)
RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN convert_from(packed, 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;

-- penstock.int32_at(packed, index)
--
-- Reads one little-endian int32 out of a packed column of ends.
--
-- Parameters: packed - four bytes per entry; index - from 0; -1 reads as 0, where the first value begins.
-- Returns: the entry.
-- Calls: nothing. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.int32_at(packed bytea, index integer)
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN index < 0 THEN 0 ELSE
        get_byte(packed, 4 * index)
        | (get_byte(packed, 4 * index + 1) << 8)
        | (get_byte(packed, 4 * index + 2) << 16)
        | (get_byte(packed, 4 * index + 3) << 24)
    END
$$;

-- penstock.run_of(run_counts, index, total)
--
-- Finds the run that a message of a merged segment belongs to.
--
-- Parameters: run_counts - how many messages each run has; index - the message's index in the segment, from 0; total -
-- how many messages the segment has.
-- Returns: the run's number, from 1, and how many messages lie before it.
-- Calls: nothing. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.run_of(run_counts integer[], index integer, total integer)
RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    size   integer;
    run    integer := 0;
    before integer := 0;
BEGIN
    -- Of messages that were pushed one by one each is a run, and nothing has to be counted.
    IF cardinality(run_counts) = total THEN
        RETURN ARRAY[index + 1, index];
    END IF;
    FOREACH size IN ARRAY run_counts LOOP
        run := run + 1;
        EXIT WHEN index < before + size;
        before := before + size;
    END LOOP;
    RETURN ARRAY[run, before];
END
$$;

-- penstock.state_name(state)
--
-- Returns the name of a state of the journal.
--
-- Parameters: state - the letter as stored.
-- Returns: the name.
-- Calls: nothing. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.state_name(state "char")
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE state
        WHEN 'i' THEN 'idle' WHEN 'r' THEN 'ready' WHEN 'c' THEN 'claimed'
        WHEN 't' THEN 'timed' WHEN 'p' THEN 'parked' WHEN 'n' THEN 'enrolling'
    END
$$;

-- penstock.time_in_runs(created_at, run_counts, run_times, index)
--
-- Returns the time of one message of a segment.
--
-- Parameters: the segment's columns, and the message's index in it, from 0.
-- Returns: the time.
-- Calls: run_of. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.time_in_runs(
    created_at timestamptz, run_counts integer[], run_times timestamptz[], index integer
)
RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN run_counts IS NULL THEN created_at ELSE run_times[(penstock.run_of(run_counts, index, NULL))[1]] END
$$;

-- penstock.unpack(partition_id, base_offset, count, created_at, run_skip, run_counts, run_times, …)
--
-- Returns a slice of segment_slices as a row per message, for psql and the views. The clients unpack by themselves.
--
-- It accepts any bytes. A key that is not text is shown in PostgreSQL's escape format, as encode(key, 'escape')
-- writes it, and so are headers that are not a JSON object of strings, as the one header penstock-undecoded. An end
-- that is lower than the one before, or outside the column, is moved to the nearest valid place: its value is empty
-- or cut.
--
-- Parameters: the columns of a slice, and the partition it belongs to.
-- Returns: a row per message.
-- Calls: int32_at, message_id, decoded_key, decoded_headers. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.unpack(
    partition_id bigint, base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
RETURNS TABLE (
    id uuid, message_offset bigint, message_key text, payload bytea, message_headers jsonb, message_time timestamptz
)
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    -- Assigned, and so fetched from storage and decompressed once: a slice of the argument would do it per message.
    all_values  bytea := body || ''::bytea;
    all_keys    bytea := keys || ''::bytea;
    all_headers bytea := headers || ''::bytea;
    -- As null_flags, which readers of the views may not call.
    nulls       bytea := CASE WHEN octet_length(ends) > 4 * count THEN substring(ends FROM 4 * count + 1) END;
    value_from  integer := body_start;
    value_to    integer;
    value_most  integer := body_start + octet_length(all_values);
    key_from    integer := key_start;
    key_to      integer;
    key_most    integer := key_start + octet_length(all_keys);
    header_from integer := header_start;
    header_to   integer;
    header_most integer := header_start + octet_length(all_headers);
    -- Likewise; and walked, because to look a time up takes as long as there are runs.
    counts      integer[] := run_counts;
    times       timestamptz[] := run_times;
    run         integer := 1;
    run_to      integer := counts[1] - run_skip;
    i           integer := 0;
    careful     boolean := false;
    packed      bytea;
BEGIN
    message_time := coalesce(times[1], created_at);
    WHILE i < count LOOP
        BEGIN
            WHILE i < count LOOP
                WHILE i >= run_to LOOP
                    run := run + 1;
                    run_to := run_to + counts[run];
                    message_time := times[run];
                END LOOP;
                value_to := least(greatest(penstock.int32_at(ends, i), value_from), value_most);
                key_to := least(greatest(penstock.int32_at(key_ends, i), key_from), key_most);
                header_to := least(greatest(penstock.int32_at(header_ends, i), header_from), header_most);
                message_offset := base_offset + i;
                payload := CASE WHEN nulls IS NULL OR get_byte(nulls, i) = 0 THEN
                    substring(all_values FROM value_from - body_start + 1 FOR value_to - value_from) END;
                message_key := NULL;
                IF key_to > key_from THEN
                    packed := substring(all_keys FROM key_from - key_start + 1 FOR key_to - key_from);
                    message_key := CASE WHEN careful THEN coalesce(penstock.decoded_key(packed), encode(packed, 'escape'))
                        ELSE convert_from(packed, 'UTF8') END;
                END IF;
                message_headers := NULL;
                IF header_to > header_from THEN
                    packed := substring(all_headers FROM header_from - header_start + 1 FOR header_to - header_from);
                    message_headers := CASE WHEN NOT careful THEN convert_from(packed, 'UTF8')::jsonb
                        ELSE penstock.decoded_headers(packed) END;
                    IF message_headers IS NULL OR jsonb_typeof(message_headers) <> 'object'
                       OR jsonb_path_exists(message_headers, '$.* ? (@.type() != "string")')
                    THEN
                        message_headers := jsonb_build_object('penstock-undecoded', encode(packed, 'escape'));
                    END IF;
                END IF;
                id := penstock.message_id(partition_id, message_offset, message_time);
                RETURN NEXT;
                value_from := value_to;
                key_from := key_to;
                header_from := header_to;
                i := i + 1;
            END LOOP;
        EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
            -- What came before this message is returned already. From here on each is looked at by itself, which takes
            -- longer.
            IF careful THEN
                RAISE;
            END IF;
            careful := true;
        END;
    END LOOP;
END
$$;

-- penstock.consumer_offsets: the next offset of each group in each partition it has begun. Offsets start at 0. All
-- below it is done; of a shared group, which hands out ranges in any order, it is the first that is not.
-- Granted to: consumer.
CREATE OR REPLACE VIEW penstock.consumer_offsets AS
SELECT
    g.name AS group_id, p.partition_id AS topic_id, q.name AS queue_name, p.name AS partition_name,
    least(j.committed, open.lo) AS next_offset
FROM penstock.consumer_groups g
JOIN penstock.queues q ON q.queue_id = g.queue_id
JOIN penstock.partitions p ON p.queue_id = g.queue_id
CROSS JOIN LATERAL (
    SELECT j.committed FROM penstock.journal j
    WHERE j.group_id = g.group_id AND j.partition_id = p.partition_id
    ORDER BY j.version DESC
    LIMIT 1
) j
CROSS JOIN LATERAL (
    SELECT least(
        (SELECT min(c.lo) FROM penstock.claims c WHERE c.group_id = g.group_id AND c.partition_id = p.partition_id),
        (SELECT min(y.lo) FROM penstock.ready y
         WHERE y.group_id = g.group_id AND y.partition_id = p.partition_id AND y.lo IS NOT NULL)
    ) AS lo
) open;

-- penstock.log_counter: the offset that the next message of each partition gets. Offsets start at 0.
-- Granted to: consumer.
CREATE OR REPLACE VIEW penstock.log_counter AS
SELECT p.partition_id AS id, q.name AS queue_name, p.name AS partition_name, coalesce(s.head_offset, 0) AS next_offset
FROM penstock.partitions p
JOIN penstock.queues q ON q.queue_id = p.queue_id
-- Not partition_span: a view's functions run as the reader, who may not see the table.
LEFT JOIN LATERAL (
    SELECT s.base_offset + s.count AS head_offset
    FROM penstock.segments s
    WHERE s.partition_id = p.partition_id
    ORDER BY s.base_offset DESC
    LIMIT 1
) s ON true;

-- penstock.messages: every message as a row, for people with psql. Restrict it by queue_name and partition_name.
-- Granted to: consumer.
CREATE OR REPLACE VIEW penstock.messages AS
SELECT
    m.id, q.name AS queue_name, p.partition_id, p.name AS partition_name,
    m.message_offset, m.message_key AS key, m.payload, m.message_headers AS headers, m.message_time AS created_at
FROM penstock.queues q
JOIN penstock.partitions p ON p.queue_id = q.queue_id
JOIN penstock.segments s ON s.partition_id = p.partition_id AND s.ends IS NOT NULL
CROSS JOIN LATERAL penstock.unpack(
    s.partition_id, s.base_offset, s.count, s.created_at, 0, s.run_counts, s.run_times,
    0, coalesce(s.body, s.body_compressed), s.ends, 0, s.keys, s.key_ends, 0, s.headers, s.header_ends
) m;

-- penstock.partition_consumers: how far each group is in each partition, and who holds it. Computed from the journal,
-- and for shared groups from the ranges that are open: list_claims says who holds those.
-- Granted to: consumer.
CREATE OR REPLACE VIEW penstock.partition_consumers AS
SELECT
    p.partition_id,
    q.name AS queue_name,
    p.name AS partition_name,
    g.name AS consumer_group,
    CASE WHEN at.committed > 0 THEN penstock.message_id(p.partition_id, at.committed - 1, last.created_at) END
        AS last_consumed_id,
    last.created_at AS last_consumed_created_at,
    j.acked_at AS last_consumed_at,
    CASE WHEN j.state = 'c' THEN coalesce(j.claimed_at, j.at) END AS lease_acquired_at,
    CASE WHEN j.state = 'c' THEN j.due_at END AS lease_expires_at,
    CASE WHEN j.state = 'c' THEN j.consumer END AS worker_id,
    CASE WHEN j.state = 'c' THEN j.claimed_to - j.committed ELSE 0 END AS batch_size,
    j.committed - j.skipped - dropped.messages - open.messages AS acked_count,
    greatest(j.attempt - (j.state = 'c')::integer, 0) AS batch_retry_count,
    penstock.state_name(j.state) AS state,
    at.committed,
    j.claimed_to,
    j.skipped + dropped.messages AS skipped
FROM penstock.consumer_groups g
JOIN penstock.queues q ON q.queue_id = g.queue_id
JOIN penstock.partitions p ON p.queue_id = g.queue_id
CROSS JOIN LATERAL (
    SELECT j.* FROM penstock.journal j
    WHERE j.group_id = g.group_id AND j.partition_id = p.partition_id
    ORDER BY j.version DESC
    LIMIT 1
) j
CROSS JOIN LATERAL (
    SELECT min(w.lo) AS lo, coalesce(sum(w.hi - w.lo), 0)::bigint AS messages
    FROM (
        SELECT c.lo, c.hi FROM penstock.claims c WHERE c.group_id = g.group_id AND c.partition_id = p.partition_id
        UNION ALL
        SELECT y.lo, y.hi FROM penstock.ready y
        WHERE y.group_id = g.group_id AND y.partition_id = p.partition_id AND y.lo IS NOT NULL
    ) w
) open
CROSS JOIN LATERAL (
    SELECT coalesce(sum(k.hi - k.lo), 0)::bigint AS messages
    FROM penstock.skips k
    WHERE k.group_id = g.group_id AND k.partition_id = p.partition_id
) dropped
CROSS JOIN LATERAL (SELECT least(j.committed, open.lo) AS committed) at
LEFT JOIN LATERAL (
    SELECT penstock.time_in_runs(s.created_at, s.run_counts, s.run_times, (at.committed - 1 - s.base_offset)::integer)
        AS created_at
    FROM penstock.segments s
    WHERE s.partition_id = p.partition_id AND s.base_offset < at.committed
    ORDER BY s.base_offset DESC
    LIMIT 1
) last ON true;

-- penstock.partition_lookup: the newest message of every partition that has one. Computed, so it cannot be stale.
-- Granted to: consumer.
CREATE OR REPLACE VIEW penstock.partition_lookup AS
SELECT
    lpad(to_hex(p.partition_id), 32, '0')::uuid AS id,
    q.name AS queue_name,
    p.partition_id,
    penstock.message_id(p.partition_id, newest.head_offset - 1, newest.created_at) AS last_message_id,
    newest.created_at AS last_message_created_at,
    newest.created_at AS updated_at,
    newest.head_offset - oldest.floor_offset AS messages_count
FROM penstock.partitions p
JOIN penstock.queues q ON q.queue_id = p.queue_id
-- Not partition_span: a view's functions run as the reader, who may not see the table.
CROSS JOIN LATERAL (
    SELECT CASE WHEN s.ends IS NULL THEN s.base_offset + s.count ELSE s.base_offset END AS floor_offset
    FROM penstock.segments s
    WHERE s.partition_id = p.partition_id
    ORDER BY s.base_offset
    LIMIT 1
) oldest
CROSS JOIN LATERAL (
    SELECT s.base_offset + s.count AS head_offset, s.created_at
    FROM penstock.segments s
    WHERE s.partition_id = p.partition_id
    ORDER BY s.base_offset DESC
    LIMIT 1
) newest
WHERE newest.head_offset > oldest.floor_offset;

-- Drops functions that this version does not have. A function whose parameters changed is a new function beside the
-- old one, and calls with defaults would match both. The functions that the current migrate has just written have its
-- own transaction id, or a later one where psql sets savepoints (ON_ERROR_ROLLBACK). The schema belongs to penstock
-- alone, so all others are old ones.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN
        SELECT p.oid::regprocedure AS signature
        FROM pg_proc p
        WHERE p.pronamespace = 'penstock'::regnamespace AND age(p.xmin) > age(pg_current_xact_id()::xid)
    LOOP
        EXECUTE format('DROP FUNCTION %s', old.signature);
    END LOOP;
END
$$;

-- PUBLIC has no privileges. `penstock grant` grants the three roles what they may call.
REVOKE ALL ON SCHEMA penstock FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA penstock FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA penstock FROM PUBLIC;

COMMIT;

INSERT INTO penstock."claims" ("group_id", "partition_id", "lo", "hi", "attempt", "lease_id", "due_at", "consumer", "claimed_at", "first_error", "last_error", "alone", "whole") OVERRIDING SYSTEM VALUE VALUES ('2', '1', '0', '1', '1', '95103f53-49a4-42a6-a127-2fc609a6b85a', '2026-11-17 11:20:48.6048+00', 'vm/1698/e61680', '2026-11-17 11:15:48.612309+00', NULL, NULL, 'true', 'true');
INSERT INTO penstock."consumer_groups" ("group_id", "queue_id", "name", "mode", "config", "subscription", "from_time", "enrolled_to", "enrol_again", "created_at", "awaited", "created_in", "lineage", "limited_at") OVERRIDING SYSTEM VALUE VALUES ('1', '1', 'billing', 'ordered', '{"max_attempts": 3}', 'all', NULL, '0', 'false', '2026-11-17 11:15:48.426808+00', NULL, '975630', NULL, '2026-11-17 11:15:48.566808+00');
INSERT INTO penstock."consumer_groups" ("group_id", "queue_id", "name", "mode", "config", "subscription", "from_time", "enrolled_to", "enrol_again", "created_at", "awaited", "created_in", "lineage", "limited_at") OVERRIDING SYSTEM VALUE VALUES ('2', '1', 'crowd', 'shared', '{}', 'all', NULL, NULL, 'false', '2026-11-17 11:15:48.448163+00', '{}', '975631', NULL, '2026-11-17 11:15:48.448175+00');
INSERT INTO penstock."dead_letters" ("dead_letter_id", "queue_id", "group_id", "partition_id", "message_offset", "created_at", "payload", "key", "headers", "reason", "attempts", "first_error", "last_error", "consumer", "died_at", "traceback", "row_ids") OVERRIDING SYSTEM VALUE VALUES ('1', '1', '1', '1', '0', '2026-11-17 11:15:48.468364+00',  E'\\x626164', 'k', '{"h": "1"}', 'no such customer', '1', 'no such customer', 'no such customer', 'vm/1698/e61680', '2026-11-17 11:15:48.542652+00', NULL, NULL);
INSERT INTO penstock."journal" ("group_id", "partition_id", "version", "at", "state", "committed", "claimed_to", "skipped", "attempt", "narrow_attempt", "narrow_to", "ready_seq", "due_at", "lease_id", "consumer", "acked_at", "first_error", "last_error", "claimed_at") OVERRIDING SYSTEM VALUE VALUES ('1', '1', '1', '2026-11-17 11:15:48.47853+00', 'r', '0', '0', '0', '0', '0', NULL, '1', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO penstock."journal" ("group_id", "partition_id", "version", "at", "state", "committed", "claimed_to", "skipped", "attempt", "narrow_attempt", "narrow_to", "ready_seq", "due_at", "lease_id", "consumer", "acked_at", "first_error", "last_error", "claimed_at") OVERRIDING SYSTEM VALUE VALUES ('1', '1', '2', '2026-11-17 11:15:48.503161+00', 'c', '0', '1', '0', '1', '0', NULL, NULL, '2026-11-17 11:20:48.500888+00', 'ef3dabcc-54a2-4bc7-9686-788591d92d30', 'vm/1698/e61680', NULL, NULL, NULL, NULL);
INSERT INTO penstock."journal" ("group_id", "partition_id", "version", "at", "state", "committed", "claimed_to", "skipped", "attempt", "narrow_attempt", "narrow_to", "ready_seq", "due_at", "lease_id", "consumer", "acked_at", "first_error", "last_error", "claimed_at") OVERRIDING SYSTEM VALUE VALUES ('1', '1', '3', '2026-11-17 11:15:48.543375+00', 'r', '1', '1', '0', '0', '0', NULL, '3', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO penstock."journal" ("group_id", "partition_id", "version", "at", "state", "committed", "claimed_to", "skipped", "attempt", "narrow_attempt", "narrow_to", "ready_seq", "due_at", "lease_id", "consumer", "acked_at", "first_error", "last_error", "claimed_at") OVERRIDING SYSTEM VALUE VALUES ('1', '1', '4', '2026-11-17 11:15:48.599144+00', 'c', '1', '2', '0', '1', '0', NULL, NULL, '2026-11-17 11:20:48.591546+00', 'b9c4ff85-2349-4a3e-b203-8395f9b918e5', 'vm/1698/e61680', NULL, NULL, NULL, NULL);
INSERT INTO penstock."journal" ("group_id", "partition_id", "version", "at", "state", "committed", "claimed_to", "skipped", "attempt", "narrow_attempt", "narrow_to", "ready_seq", "due_at", "lease_id", "consumer", "acked_at", "first_error", "last_error", "claimed_at") OVERRIDING SYSTEM VALUE VALUES ('2', '1', '2', '2026-11-17 11:15:48.603408+00', 'p', '3', '3', '0', '0', '0', NULL, NULL, '2026-11-17 11:15:48.653377+00', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO penstock."partitions" ("partition_id", "queue_id", "name", "priority", "created_at", "lane_of") OVERRIDING SYSTEM VALUE VALUES ('1', '1', 'ada', '0', '2026-11-17 11:15:48.46315+00', NULL);
INSERT INTO penstock."producers" ("producer", "sequence", "pushed_at", "partition_id", "first_offset", "count", "partition_ids", "first_offsets", "counts", "times", "answer") OVERRIDING SYSTEM VALUE VALUES ('9abb3167-905a-484b-8e7c-7461b3cb45a6', '1', '2026-11-17 11:15:48.468364+00', '1', '0', '3', NULL, NULL, NULL, NULL, NULL);
INSERT INTO penstock."producers" ("producer", "sequence", "pushed_at", "partition_id", "first_offset", "count", "partition_ids", "first_offsets", "counts", "times", "answer") OVERRIDING SYSTEM VALUE VALUES ('9abb3167-905a-484b-8e7c-7461b3cb45a6', '2', '2026-11-17 11:15:48.622847+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, '[{"due_at": "2026-11-17T12:15:48.622847+00:00", "created_at": "2026-11-17T11:15:48.622847+00:00", "first_offset": null, "partition_id": 1, "scheduled_id": 1, "message_count": 1, "duplicate_times": null, "duplicate_offsets": null, "duplicate_positions": null, "duplicate_scheduled_ids": null}]');
INSERT INTO penstock."queues" ("queue_id", "name", "description", "config", "created_at", "priorities", "limited_at") OVERRIDING SYSTEM VALUE VALUES ('1', 'orders', NULL, '{}', '2026-11-17 11:15:48.419936+00', '{0}', '2026-11-17 11:15:48.419936+00');
INSERT INTO penstock."ready" ("group_id", "priority", "seq", "partition_id", "lo", "hi", "attempt", "first_error", "last_error") OVERRIDING SYSTEM VALUE VALUES ('2', '0', '4', '1', '1', '2', '0', NULL, NULL);
INSERT INTO penstock."ready" ("group_id", "priority", "seq", "partition_id", "lo", "hi", "attempt", "first_error", "last_error") OVERRIDING SYSTEM VALUE VALUES ('2', '0', '5', '1', '2', '3', '0', NULL, NULL);
INSERT INTO penstock."scheduled" ("scheduled_id", "queue_id", "partition_id", "due_at", "created_at", "count", "bytes", "body", "ends", "keys", "key_ends", "headers", "header_ends", "dedupe_ids", "dedupe_positions") OVERRIDING SYSTEM VALUE VALUES ('1', '1', '1', '2026-11-17 12:15:48.622847+00', '2026-11-17 11:15:48.622847+00', '1', '5',  E'\\x6c61746572',  E'\\x05000000', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO penstock."segments" ("partition_id", "base_offset", "created_at", "count", "bytes", "body", "body_compressed", "ends", "keys", "key_ends", "headers", "header_ends", "run_counts", "run_times") OVERRIDING SYSTEM VALUE VALUES ('1', '0', '2026-11-17 11:15:48.468364+00', '3', '41',  E'\\x626164676f6f646f70656e', NULL,  E'\\x03000000070000000b000000',  E'\\x6b6b6b',  E'\\x010000000200000003000000',  E'\\x7b2268223a2231227d7b2268223a2231227d7b2268223a2231227d',  E'\\x09000000120000001b000000', NULL, NULL);
INSERT INTO penstock."segments" ("partition_id", "base_offset", "created_at", "count", "bytes", "body", "body_compressed", "ends", "keys", "key_ends", "headers", "header_ends", "run_counts", "run_times") OVERRIDING SYSTEM VALUE VALUES ('-1', '0', '2026-11-17 11:15:48.689114+00', '1', '6',  E'\\x737461676564', NULL,  E'\\x06000000', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO penstock."sink_runs" ("writer", "run", "run_number", "begun_at", "owner") OVERRIDING SYSTEM VALUE VALUES ('writer', 'run', '1', '2026-11-17 11:15:48.682176+00', 'postgres');
INSERT INTO penstock."staged" ("stage_id", "first_ordinal", "queue_names", "partition_names", "counts", "staged_at") OVERRIDING SYSTEM VALUE VALUES ('1', '0', '{orders}', '{ada}', '{1}', '2026-11-17 11:15:48.685508+00');
INSERT INTO penstock."stages" ("stage_id", "writer", "run", "epoch", "created_at") OVERRIDING SYSTEM VALUE VALUES ('1', 'writer', 'run', '0', '2026-11-17 11:15:48.682463+00');
SELECT setval('penstock.consumer_groups_group_id_seq', 2);
SELECT setval('penstock.dead_letters_dead_letter_id_seq', 1);
SELECT setval('penstock.partitions_partition_id_seq', 1);
SELECT setval('penstock.queues_queue_id_seq', 2);
SELECT setval('penstock.ready_seq', 5);
SELECT setval('penstock.scheduled_seq', 1);
SELECT setval('penstock.sink_runs_run_number_seq', 1);
SELECT setval('penstock.stages_stage_id_seq', 1);
