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

-- The registry: what a flow is made of, in its order, and where the code of each part comes from. An action that workers
-- run has the queue of its items, and the one that it pushes to; an action of a Spark flow has neither.
CREATE TABLE penstock.actions (
    flow_name     text        NOT NULL,
    action_name   text        NOT NULL,
    position      integer     NOT NULL,
    flow_type     text        NOT NULL,
    action_class  text        NOT NULL,
    plugin        text        NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    queue         text,
    output        text,
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
