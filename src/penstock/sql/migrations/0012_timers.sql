-- 0012_timers: timers that fail, groups that come into being beside pushes, and where a group began to read.

-- Timers that failed and were put off, so that they hold up no other. `place` says which one of its kind it is: the version of
-- a journal row, the first offset of a claim or doorbell, the id of what is scheduled. A row goes when its timer works
-- again, or is gone.
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
        kind IN ('journal', 'claim', 'doorbell', 'enrolment', 'scheduled', 'sweep')
    )
);

-- `awaited`: the transactions that held the shared lock of the queue when the group could first be seen: they may push without
-- knowing of it. Null before they were looked up, empty once all of them have ended. `created_in`: the transaction that
-- created the group; while it has not ended, nobody else can know of the group.
ALTER TABLE penstock.consumer_groups
    ADD COLUMN awaited    text[],
    ADD COLUMN created_in xid8;

-- Where a group that does not read all there is began in a partition. Only `verify` looks: nothing that was pushed since the
-- group came into being may lie before.
CREATE TABLE penstock.beginnings (
    group_id     integer NOT NULL,
    partition_id bigint  NOT NULL,
    base_offset  bigint  NOT NULL,
    CONSTRAINT beginnings_pkey PRIMARY KEY (group_id, partition_id)
);

-- Parked partitions are due within milliseconds. One that is due later was parked before the clock went back.
CREATE INDEX journal_parked ON penstock.journal (due_at) WHERE state = 'p';
