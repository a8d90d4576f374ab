-- 0002_workers: what actions and workers need.

-- Gates: pauses, holds, and limits by key.
ALTER TABLE penstock.consumer_groups
    ADD COLUMN gated      boolean NOT NULL DEFAULT false,
    ADD COLUMN held_at    timestamptz,
    ADD COLUMN held_until timestamptz,
    ADD COLUMN probing    boolean NOT NULL DEFAULT false,
    ADD COLUMN flow_paused boolean NOT NULL DEFAULT false;
ALTER TABLE penstock.queues
    ADD COLUMN push_gated boolean NOT NULL GENERATED ALWAYS AS (
        config @> '{"push_paused": true}' OR config ? 'push_rate_limit'
    ) STORED;
ALTER TABLE penstock.failing_timers
    DROP CONSTRAINT failing_timers_kind_is_known,
    ADD CONSTRAINT failing_timers_kind_is_known CHECK (
        kind IN ('journal', 'claim', 'late_wakeup', 'enrolment', 'scheduled', 'sweep', 'maintenance', 'limits')
    );
-- Functions whose result has another shape; they are written anew with all others.
DROP FUNCTION penstock.settings();
DROP FUNCTION penstock.list_groups(text);
DROP FUNCTION penstock.require_segments(bigint[], integer[], bytea[], bytea[], bytea[], bytea[], bytea[], bytea[]);
CREATE TABLE penstock.limited_keys (
    group_id  integer     NOT NULL,
    kind      "char"      NOT NULL,
    key       text        NOT NULL,
    full_at   timestamptz,
    look_at   timestamptz,
    looked_at timestamptz,
    CONSTRAINT limited_keys_pkey PRIMARY KEY (group_id, kind, key)
)
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX limited_keys_look ON penstock.limited_keys (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX limited_keys_looked ON penstock.limited_keys (looked_at) WHERE look_at IS NOT NULL;

CREATE TABLE penstock.slots (
    group_id     integer        NOT NULL,
    key          text           NOT NULL,
    lease_id     uuid           NOT NULL,
    partition_id bigint         NOT NULL,
    messages     integer        NOT NULL,
    offsets      int8multirange NOT NULL,
    CONSTRAINT slots_pkey PRIMARY KEY (group_id, key, lease_id)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX slots_by_lease ON penstock.slots (lease_id);

CREATE TABLE penstock.waiters (
    group_id     integer     NOT NULL,
    kind         "char"      NOT NULL,
    key          text        NOT NULL,
    seq          bigint      NOT NULL,
    partition_id bigint      NOT NULL,
    version      bigint,
    lo           bigint,
    since        timestamptz NOT NULL,
    CONSTRAINT waiters_pkey PRIMARY KEY (group_id, kind, key, seq)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE penstock.push_rates (
    queue_id integer     NOT NULL,
    full_at  timestamptz NOT NULL,
    CONSTRAINT push_rates_pkey PRIMARY KEY (queue_id)
)
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Claims ahead: whether a claim was begun when its lease ended.
ALTER TABLE penstock.journal ADD COLUMN ahead boolean NOT NULL DEFAULT false;
ALTER TABLE penstock.claims ADD COLUMN ahead boolean NOT NULL DEFAULT false;

-- Workers: what they are at, and which queues their actions take items from and push to.
CREATE TABLE penstock.running_tasks (
    worker       text        NOT NULL,
    heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    tasks        jsonb       NOT NULL,
    CONSTRAINT running_tasks_pkey PRIMARY KEY (worker)
)
WITH (fillfactor = 50);

-- Runs of workers that were told to stop. No signal reaches a worker in a Spark executor: it asks here. A row is written
-- when a run is stopped, and kept for a day.
CREATE TABLE penstock.stopped_runs (
    run        text        NOT NULL,
    at_once    boolean     NOT NULL,
    stopped_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT stopped_runs_pkey PRIMARY KEY (run),
    CONSTRAINT stopped_runs_run_is_valid CHECK (octet_length(run) BETWEEN 1 AND 255)
);

ALTER TABLE penstock.actions ADD COLUMN queue text;
ALTER TABLE penstock.actions ADD COLUMN output text;

-- Who consumes, how it fares, and which groups are held because their handlers fail.
--
-- A row per consumer and per failing group, written in batches of a few seconds: nothing here is on a hot path, so rows
-- are updated in place. The free space in each page keeps that cheap.

-- A consumer is a process that consumes, or more exactly one client of it. It gets its row on first contact.
CREATE TABLE penstock.consumers (
    consumer_id text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    description text,
    metadata    jsonb,
    CONSTRAINT consumers_pkey PRIMARY KEY (consumer_id),
    CONSTRAINT consumers_id_is_valid CHECK (octet_length(consumer_id) BETWEEN 1 AND 255)
);

-- What a consumer said of itself last. Times are in microseconds: `avg_processing_time` and `p99_processing_time` are
-- those of one message. `report_number` is that of the last report, so that one that is repeated counts once.
-- `is_reset`: an operator wants it to count from 0; its next report tells it.
CREATE TABLE penstock.consumer_health (
    consumer_id         text        NOT NULL
        CONSTRAINT consumer_health_consumer REFERENCES penstock.consumers (consumer_id) ON DELETE CASCADE,
    last_seen           timestamptz NOT NULL DEFAULT clock_timestamp(),
    status              text        NOT NULL,
    success_count       bigint      NOT NULL DEFAULT 0,
    error_count         bigint      NOT NULL DEFAULT 0,
    consecutive_errors  bigint      NOT NULL DEFAULT 0,
    avg_processing_time bigint,
    p99_processing_time bigint,
    last_error          text,
    report_number       bigint      NOT NULL DEFAULT 0,
    is_reset            boolean     NOT NULL DEFAULT false,
    metadata            jsonb,
    CONSTRAINT consumer_health_pkey PRIMARY KEY (consumer_id),
    CONSTRAINT consumer_health_status_is_known CHECK (
        status IN ('healthy', 'degraded', 'open', 'half_open', 'gone')
    )
)
WITH (fillfactor = 50);

-- Which groups a consumer handles messages of, and how many errors in a row it had there last. Written when that
-- changes.
CREATE TABLE penstock.group_consumers (
    group_id           integer NOT NULL
        CONSTRAINT group_consumers_group REFERENCES penstock.consumer_groups (group_id) ON DELETE CASCADE,
    consumer_id        text    NOT NULL
        CONSTRAINT group_consumers_consumer REFERENCES penstock.consumers (consumer_id) ON DELETE CASCADE,
    consecutive_errors bigint  NOT NULL,
    CONSTRAINT group_consumers_pkey PRIMARY KEY (group_id, consumer_id)
)
WITH (fillfactor = 50);
CREATE INDEX group_consumers_by_consumer ON penstock.group_consumers (consumer_id);

-- The circuit breaker of a group, across all consumers. A group has a row from its first reported failure on. While the
-- breaker is open the group is held until `open_until`; then one message is handed out as a probe. `opened` is how
-- often it opened without closing in between, `pause` how long it holds the group this time, in seconds.
CREATE TABLE penstock.breakers (
    group_id           integer          NOT NULL
        CONSTRAINT breakers_group REFERENCES penstock.consumer_groups (group_id) ON DELETE CASCADE,
    state              text             NOT NULL DEFAULT 'closed',
    since              timestamptz      NOT NULL,
    consecutive_errors bigint           NOT NULL DEFAULT 0,
    window_began       timestamptz      NOT NULL,
    window_calls       bigint           NOT NULL DEFAULT 0,
    window_errors      bigint           NOT NULL DEFAULT 0,
    opened             integer          NOT NULL DEFAULT 0,
    opened_at          timestamptz,
    open_until         timestamptz,
    pause              double precision,
    reason             text,
    last_error         text,
    CONSTRAINT breakers_pkey PRIMARY KEY (group_id),
    CONSTRAINT breakers_state_is_known CHECK (state IN ('closed', 'open'))
)
WITH (fillfactor = 50);

-- Metrics: what clients count and what is sampled of groups, as series per queue; and the settings of checks.
--
-- Written in batches of a minute or so, and only where something changed. Nothing here is on a hot path.

-- A queue's series lie together, newest first: what is asked of a queue is one range of the index. Rows go with their
-- queue. There is no unique key, because several clients may report at the same moment.
CREATE TABLE penstock.queue_metrics (
    queue_name   text        NOT NULL
        CONSTRAINT queue_metrics_queue REFERENCES penstock.queues (name) ON UPDATE CASCADE ON DELETE CASCADE,
    metric_name  text        NOT NULL,
    metric_value bigint      NOT NULL,
    "timestamp"  timestamptz NOT NULL DEFAULT clock_timestamp(),
    labels       jsonb
);
CREATE INDEX queue_metrics_by_time ON penstock.queue_metrics (queue_name, "timestamp" DESC, metric_name);

-- The same by minute, hour and day, made by `penstock rollup`.
CREATE TABLE penstock.queue_rollups (
    queue_name  text             NOT NULL
        CONSTRAINT queue_rollups_queue REFERENCES penstock.queues (name) ON UPDATE CASCADE ON DELETE CASCADE,
    resolution  text             NOT NULL,
    bucket      timestamptz      NOT NULL,
    metric_name text             NOT NULL,
    labels      jsonb            NOT NULL DEFAULT '{}',
    samples     bigint           NOT NULL,
    total       bigint           NOT NULL,
    smallest    bigint           NOT NULL,
    largest     bigint           NOT NULL,
    newest      bigint           NOT NULL,
    CONSTRAINT queue_rollups_pkey PRIMARY KEY (queue_name, resolution, bucket, metric_name, labels),
    CONSTRAINT queue_rollups_resolution_is_known CHECK (resolution IN ('minute', 'hour', 'day'))
);

-- What the last complete sample found in each group that had something: `lag` messages are not acknowledged, `depth` of
-- them not handed out either. The oldest of them is that at `oldest_offset` of a partition. `times`, `lags` and
-- `depths` are the recent past, at most one sample a minute; where nothing changed there is no sample.
CREATE TABLE penstock.group_samples (
    group_id         integer       NOT NULL
        CONSTRAINT group_samples_group REFERENCES penstock.consumer_groups (group_id) ON DELETE CASCADE,
    sampled_at       timestamptz   NOT NULL,
    lag              bigint        NOT NULL,
    depth            bigint        NOT NULL,
    ready            bigint        NOT NULL,
    claimed          bigint        NOT NULL,
    waiting          bigint        NOT NULL,
    oldest_at        timestamptz,
    oldest_partition bigint,
    oldest_offset    bigint,
    measured_at      timestamptz   NOT NULL DEFAULT '-infinity',
    times            timestamptz[] NOT NULL DEFAULT '{}',
    lags             bigint[]      NOT NULL DEFAULT '{}',
    depths           bigint[]      NOT NULL DEFAULT '{}',
    CONSTRAINT group_samples_pkey PRIMARY KEY (group_id)
)
WITH (fillfactor = 50);

-- Has no rows: who samples locks the table, as in `sweep_lock`.
CREATE TABLE penstock.sample_lock ();

-- A sample that takes several steps: where and when the next one goes on, and what was found so far. Not logged: after a crash
-- of the server the sample begins anew.
CREATE UNLOGGED TABLE penstock.sampling (
    one         boolean     NOT NULL DEFAULT true,
    phase       "char"      NOT NULL,
    began_at    timestamptz NOT NULL,
    last_seq    bigint      NOT NULL,
    at_group    integer     NOT NULL,
    at_priority smallint    NOT NULL,
    at_seq      bigint      NOT NULL,
    at_due      timestamptz NOT NULL,
    next_at     timestamptz NOT NULL,
    CONSTRAINT sampling_pkey PRIMARY KEY (one)
);
CREATE UNLOGGED TABLE penstock.sampled (
    group_id         integer NOT NULL,
    lag              bigint  NOT NULL,
    depth            bigint  NOT NULL,
    ready            bigint  NOT NULL,
    claimed          bigint  NOT NULL,
    waiting          bigint  NOT NULL,
    oldest_at        timestamptz,
    oldest_partition bigint,
    oldest_offset    bigint,
    CONSTRAINT sampled_pkey PRIMARY KEY (group_id)
);

-- How far dead letters were counted, and when the last sample was complete. One row, or none before the first.
CREATE TABLE penstock.sample_marks (
    one            boolean     NOT NULL DEFAULT true,
    dead_letter_id bigint      NOT NULL,
    CONSTRAINT sample_marks_pkey PRIMARY KEY (one),
    CONSTRAINT sample_marks_is_one_row CHECK (one)
);

-- What differs from the defaults of `penstock.checks()`.
CREATE TABLE penstock.check_settings (
    name   text  NOT NULL,
    config jsonb NOT NULL,
    CONSTRAINT check_settings_pkey PRIMARY KEY (name)
);

-- Rules that redrive dead letters by themselves.

-- Dead letters that match a rule are redriven by themselves, up to `max_redrives` times for each message: the wait
-- before the first is `backoff` seconds, and before each further one `backoff_factor` times as long. Null matches all.
CREATE TABLE penstock.dead_letter_rules (
    rule_id        bigint           GENERATED ALWAYS AS IDENTITY,
    name           text             NOT NULL,
    queue_name     text,
    group_name     text,
    reason         text,
    error_text     text,
    backoff        double precision NOT NULL,
    backoff_factor double precision NOT NULL,
    max_redrives   integer          NOT NULL,
    enabled        boolean          NOT NULL DEFAULT true,
    created_at     timestamptz      NOT NULL DEFAULT clock_timestamp(),
    redriven       bigint           NOT NULL DEFAULT 0,
    last_redriven  timestamptz,
    looked_to      bigint           NOT NULL DEFAULT 0,
    CONSTRAINT dead_letter_rules_pkey PRIMARY KEY (rule_id),
    CONSTRAINT dead_letter_rules_name_is_unique UNIQUE (name),
    CONSTRAINT dead_letter_rules_name_is_valid CHECK (penstock.name_problem(name) IS NULL)
);

-- Items: notes, steps, results and cancellations.
CREATE TABLE penstock.item_notes (
    group_id       integer     NOT NULL,
    partition_id   bigint      NOT NULL,
    message_offset bigint      NOT NULL,
    progress       float8,
    note           text,
    checkpoint     json,
    noted_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    looked_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT item_notes_pkey PRIMARY KEY (group_id, partition_id, message_offset)
)
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX item_notes_looked ON penstock.item_notes (looked_at);

CREATE TABLE penstock.item_steps (
    group_id       integer     NOT NULL,
    partition_id   bigint      NOT NULL,
    message_offset bigint      NOT NULL,
    name           text        NOT NULL,
    result         json        NOT NULL,
    done_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT item_steps_pkey PRIMARY KEY (group_id, partition_id, message_offset, name)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE penstock.item_results (
    partition_id   bigint      NOT NULL,
    message_offset bigint      NOT NULL,
    group_id       integer     NOT NULL,
    state          text        NOT NULL,
    value          bytea,
    error          text,
    kept_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at     timestamptz NOT NULL,
    CONSTRAINT item_results_pkey PRIMARY KEY (partition_id, message_offset, group_id)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX item_results_expiring ON penstock.item_results (expires_at);

CREATE TABLE penstock.cancellations (
    group_id       integer     NOT NULL,
    partition_id   bigint      NOT NULL,
    message_offset bigint      NOT NULL,
    cancelled_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    passed         boolean     NOT NULL DEFAULT false,
    heeded         boolean     NOT NULL DEFAULT false,
    CONSTRAINT cancellations_pkey PRIMARY KEY (group_id, partition_id, message_offset)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX cancellations_pending ON penstock.cancellations (group_id, partition_id, message_offset) WHERE NOT passed;
CREATE INDEX cancellations_passed ON penstock.cancellations (cancelled_at) WHERE passed;

CREATE INDEX dead_letters_by_message ON penstock.dead_letters (partition_id, message_offset, group_id);

-- Schedules: what pushes a message at each of its slots.

-- A row is a schedule: when its slots are, what it pushes, and where it stands. All slots up to `done_to` are done:
-- pushed, or left out because nobody was there to push them. `next_at` is the first one after it, null if there is none.
-- Neither goes back, whatever the clock does, so no slot is pushed twice. Slots are computed by the clients, which know
-- cron expressions and time zones; who has computed some names the `revision` of the definition and the `done_to` that
-- it saw, and changes nothing if they are others by then.
-- `origin` is the file that declares a schedule whose source is 'code', and `undeclared_at` is since when that file does
-- not declare it any more.
CREATE TABLE penstock.schedules (
    name          text        NOT NULL,
    kind          text        NOT NULL,
    spec          text        NOT NULL,
    tz            text        NOT NULL,
    start_at      timestamptz,
    queue         text        NOT NULL,
    partition     text,
    key           text,
    headers       jsonb,
    value         bytea,
    missed        text        NOT NULL,
    source        text        NOT NULL,
    origin        text,
    undeclared_at timestamptz,
    paused        boolean     NOT NULL DEFAULT false,
    revision      bigint      NOT NULL DEFAULT 1,
    done_to       timestamptz NOT NULL,
    next_at       timestamptz,
    last_slot     timestamptz,
    last_at       timestamptz,
    last_id       uuid,
    error         text,
    failed_at     timestamptz,
    created_at    timestamptz NOT NULL,
    changed_at    timestamptz NOT NULL,
    CONSTRAINT schedules_pkey PRIMARY KEY (name),
    CONSTRAINT schedules_name_is_valid CHECK (
        octet_length(name) BETWEEN 1 AND 255 AND name !~ '[\u0001-\u001f\u007f-\u009f]'
    ),
    CONSTRAINT schedules_kind_is_known CHECK (kind IN ('every', 'cron')),
    CONSTRAINT schedules_missed_is_known CHECK (missed IN ('skip', 'last', 'all')),
    CONSTRAINT schedules_source_is_known CHECK (source IN ('code', 'command')),
    CONSTRAINT schedules_next_is_not_done CHECK (next_at > done_to)
);
CREATE INDEX schedules_due ON penstock.schedules (next_at) WHERE NOT paused;

-- Unique keys: which message a key is that of.
ALTER TABLE penstock.scheduled ADD COLUMN is_unique boolean NOT NULL DEFAULT false;

-- The newest message of each unique key of a queue, so that a push can look what became of it. The row is the mutex of
-- its key: a push locks it, inserting it first where there is none, and partitions come before keys. What became of the
-- message is told by positions when somebody asks, so nothing is written when it is taken or done. `keep_for` is the
-- longest time, in seconds after `seen_at`, for which a push asked the key to count: a row whose message is done is kept
-- for so long. While the message is scheduled the row has `scheduled_id` and no offset, and `seen_at` is infinity.
CREATE TABLE penstock.unique_keys (
    queue_id       integer     NOT NULL,
    unique_key     text        NOT NULL,
    partition_id   bigint,
    message_offset bigint,
    scheduled_id   bigint,
    seen_at        timestamptz NOT NULL DEFAULT '-infinity',
    keep_for       float8      NOT NULL DEFAULT 0,
    CONSTRAINT unique_keys_pkey PRIMARY KEY (queue_id, unique_key)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX unique_keys_by_partition ON penstock.unique_keys (partition_id, message_offset);

-- Where scheduled messages with a unique key went when they were due. The sweep, which waits for nobody, cannot change
-- the row of a key that somebody has locked; so it leaves a note here, until maintenance or a push finds it.
CREATE TABLE penstock.unique_moves (
    scheduled_id   bigint      NOT NULL,
    partition_id   bigint      NOT NULL,
    message_offset bigint      NOT NULL,
    created_at     timestamptz NOT NULL,
    CONSTRAINT unique_moves_pkey PRIMARY KEY (scheduled_id)
);
CREATE INDEX unique_moves_by_partition ON penstock.unique_moves (partition_id);

-- What `verify` found when it was last run for monitoring: a row per check.
CREATE TABLE penstock.verifications (
    check_name text        NOT NULL,
    violations bigint      NOT NULL,
    checked_at timestamptz NOT NULL,
    CONSTRAINT verifications_pkey PRIMARY KEY (check_name)
);

-- Long work that a gateway does for somebody: redriving or discarding dead letters by a filter. The gateway that took
-- it writes how far it is, a row update per chunk, and any gateway can show it or ask it to stop.
CREATE TABLE penstock.jobs (
    job_id     uuid        NOT NULL DEFAULT gen_random_uuid(),
    kind       text        NOT NULL,
    queue_name text        NOT NULL,
    filter     jsonb       NOT NULL,
    started_by text,
    state      text        NOT NULL DEFAULT 'running',
    total      bigint      NOT NULL,
    done       bigint      NOT NULL DEFAULT 0,
    error      text,
    stopping   boolean     NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT jobs_pkey PRIMARY KEY (job_id),
    CONSTRAINT jobs_state_is_known CHECK (state IN ('running', 'done', 'stopped', 'failed'))
)
WITH (fillfactor = 50);

-- The gateway: API keys, sessions of the page, and the audit log.

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

-- A row per group that had a dispatcher, updated by its heartbeat every second or two. `epoch` rises with each change of
-- hands, and what an earlier dispatcher still tries is refused here and in Valkey. What lies in the window is claimed like
-- by any consumer, so the journal and `claims` are all that says who may deliver what. `longest_lease`: the longest lease
-- in seconds that a worker was given from the window.
CREATE TABLE penstock.warm_leases (
    group_id      integer     NOT NULL,
    epoch         bigint      NOT NULL,
    dispatcher    text        NOT NULL,
    deadline      timestamptz NOT NULL,
    longest_lease float8      NOT NULL DEFAULT 0,
    state         text        NOT NULL DEFAULT 'warm',
    since         timestamptz NOT NULL DEFAULT clock_timestamp(),
    items         bigint      NOT NULL DEFAULT 0,
    bytes         bigint      NOT NULL DEFAULT 0,
    transitions   bigint      NOT NULL DEFAULT 0,
    CONSTRAINT warm_leases_pkey PRIMARY KEY (group_id),
    CONSTRAINT warm_leases_state_is_known CHECK (state IN ('warm', 'cold', 'leaving', 'away'))
)
WITH (fillfactor = 50);
