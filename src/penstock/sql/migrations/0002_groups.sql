-- 0002_groups: consumer groups: who has read how far, who holds what, and what may be claimed now.
--
-- The state of a (group, partition) is its newest journal row. Rows are appended and never updated, so consuming
-- leaves no dead versions behind, however long somebody holds a transaction open.

\ir ../functions/group_settings_problem.sql

-- `enrolled_to` is how far a new group has taken up the partitions that were there before it; null: all of them.
-- `enrol_again`: some were locked in this round, so another one follows.
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
    CONSTRAINT consumer_groups_name_is_unique UNIQUE (queue_id, name),
    CONSTRAINT consumer_groups_name_is_valid CHECK (penstock.name_problem(name) IS NULL),
    CONSTRAINT consumer_groups_config_is_valid CHECK (penstock.group_settings_problem(config) IS NULL),
    CONSTRAINT consumer_groups_mode_is_known CHECK (mode IN ('ordered', 'shared')),
    CONSTRAINT consumer_groups_subscription_is_known CHECK (
        subscription IN ('all', 'new', 'time') AND (subscription = 'time') = (from_time IS NOT NULL)
    )
);

CREATE INDEX consumer_groups_enrolling ON penstock.consumer_groups (group_id) WHERE enrolled_to IS NOT NULL;

-- A private lane is a partition that one group alone sees: redriven dead letters go there.
ALTER TABLE penstock.partitions
    ADD COLUMN lane_of integer,
    DROP CONSTRAINT partitions_name_is_valid,
    ADD CONSTRAINT partitions_name_is_valid CHECK (lane_of IS NOT NULL OR penstock.name_problem(name) IS NULL);

-- The levels that partitions of a queue have or had, highest first: pop looks at each without searching for them.
ALTER TABLE penstock.queues ADD COLUMN priorities smallint[] NOT NULL DEFAULT '{0}';

-- States: i(dle), r(eady, in line), c(laimed), t(imed, waits for due_at), p(arked, looked at once more at due_at).
-- `attempt` counts the deliveries of the message at `committed`. After a failure, messages below `narrow_to` are
-- delivered one by one; each of them was delivered `narrow_attempt` times before.
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
    CONSTRAINT journal_pkey PRIMARY KEY (group_id, partition_id, version)
)
WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX journal_due ON penstock.journal (due_at) WHERE due_at IS NOT NULL;

-- The line of partitions that may be claimed now. Taken from the front with SKIP LOCKED, and deleted. In a shared
-- group a place may be that of a range (from `lo` up to `hi`) that was handed out or set aside before.
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
    CONSTRAINT ready_pkey PRIMARY KEY (group_id, priority, seq),
    CONSTRAINT ready_range_is_not_empty CHECK (lo < hi)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ready_ranges ON penstock.ready (group_id, partition_id, lo) WHERE lo IS NOT NULL;

-- The ranges of shared groups that somebody holds, or that wait for a backoff to end (no lease). A row is its own
-- mutex: it is inserted by a pop and deleted by whoever ends it, ack, nack or sweep.
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
    CONSTRAINT claims_pkey PRIMARY KEY (group_id, partition_id, lo),
    CONSTRAINT claims_range_is_not_empty CHECK (lo < hi)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX claims_due ON penstock.claims (due_at);

-- Pushes of callers above READ COMMITTED, who may see an old state of the groups: the sweep wakes for them.
CREATE TABLE penstock.doorbells (
    partition_id bigint NOT NULL,
    base_offset  bigint NOT NULL,
    CONSTRAINT doorbells_pkey PRIMARY KEY (partition_id, base_offset)
);

-- What exhausted its attempts, with a copy of the message: retention cannot take it away.
CREATE TABLE penstock.dead_letters (
    dead_letter_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id       integer     NOT NULL,
    group_id       integer     NOT NULL,
    partition_id   bigint      NOT NULL,
    message_offset bigint      NOT NULL,
    created_at     timestamptz NOT NULL,
    payload        bytea       NOT NULL,
    key            text,
    headers        jsonb,
    reason         text        NOT NULL,
    attempts       smallint    NOT NULL,
    first_error    text,
    last_error     text,
    consumer       text,
    died_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dead_letters_by_group ON penstock.dead_letters (group_id, dead_letter_id);
