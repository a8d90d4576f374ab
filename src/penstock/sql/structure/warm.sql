-- The warm tier: which dispatcher keeps the window of a group in Valkey, and how that window fares.

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
