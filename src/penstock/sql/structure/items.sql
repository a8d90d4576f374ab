-- Items: what is kept of single messages beside the log. Nothing here is written for a message that nobody asks about.

-- What a handler noted about an item: how far it is, and where to go on at the next attempt. An item with steps has a row
-- here, too, so that both are found and deleted together: when the item is settled, or by maintenance, which looks at rows
-- again from time to time (`looked_at`), where an item ended in another way.
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

-- The steps of an item that are done, with what they returned. `json` and not `jsonb`: it keeps every text.
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

-- What handlers returned or raised, for messages that were pushed with the wish to know. Kept until `expires_at`.
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

-- Messages that a group is not to handle any more. `passed`: the group is past it, so no pop has to look; such rows are kept
-- for a day, to say what became of the message. `heeded`: it was in time, else the message was handled before anybody heard
-- of it.
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

-- Whether a message became a dead letter.
CREATE INDEX dead_letters_by_message ON penstock.dead_letters (partition_id, message_offset, group_id);
