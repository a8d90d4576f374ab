-- Consumer groups: who has read how far, who holds what, and what may be claimed now.
--
-- The state of a (group, partition) is its newest journal row. Rows are appended and never updated, so consuming
-- leaves no dead versions behind, however long somebody holds a transaction open.

\ir ../internal/common/group_settings_problem.sql

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
-- `gated`: something beyond an ordinary pop applies to the group (refresh_gate knows what), so the fast path of ack_and_pop
-- is not for it. A group is held from `held_at` to `held_until`: nothing is delivered. Where it is `probing`, one message is
-- delivered after that, and the group is held for as long again. `flow_paused`: it is the group of an action whose flow is
-- paused; its own setting `paused` is another matter.
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
    gated        boolean     NOT NULL DEFAULT false,
    held_at      timestamptz,
    held_until   timestamptz,
    probing      boolean     NOT NULL DEFAULT false,
    flow_paused  boolean     NOT NULL DEFAULT false,
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
-- acknowledge a part of it: the sweep trims the first one. `ahead`: it was claimed ahead, and its consumer has not said
-- since that it begins with it.
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
    ahead          boolean     NOT NULL DEFAULT false,
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
-- no other row of its lease. `ahead`: as in `journal`.
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
    ahead        boolean     NOT NULL DEFAULT false,
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
