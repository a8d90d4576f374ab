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
