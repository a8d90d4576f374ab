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

-- What `verify` found when it was last run for monitoring: a row per check.
CREATE TABLE penstock.verifications (
    check_name text        NOT NULL,
    violations bigint      NOT NULL,
    checked_at timestamptz NOT NULL,
    CONSTRAINT verifications_pkey PRIMARY KEY (check_name)
);
