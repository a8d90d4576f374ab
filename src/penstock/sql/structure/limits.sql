-- Limits by key. These rows are updated in place, which nothing else on the way of a message is: a limit is a counter, and
-- only keys that have a limit pay for it.

-- A key that has a limit. `kind` is r(ate) or c(oncurrency). `full_at`: when the key may have a whole burst again, which
-- says how many messages it may have now (GCRA). The row is also the mutex of the key: whoever has locked it may take from
-- what the key may have. `look_at`: when the sweep looks whether those who wait for the key may go on; `looked_at`: when
-- that was decided, so that a clock that went back is noticed. Maintenance deletes rows that say nothing any more.
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

-- How many slots a claim takes of those that a key has, and for which messages: one for each in a shared group, and one
-- for all in an ordered group, where they are worked on one after the other. Freed by whoever settles them.
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

-- Who waits for a key, first come, first served: a partition of an ordered group (`version`: the row of its journal that
-- waits), or a range of a shared one (`lo`, and `since` as in its row of `claims`). One that has gone on is told by these,
-- and deleted when its turn comes.
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

-- What may be pushed to a queue with a `push_rate_limit`, as in limited_keys. Locked by its pushes, one after the other.
CREATE TABLE penstock.push_rates (
    queue_id integer     NOT NULL,
    full_at  timestamptz NOT NULL,
    CONSTRAINT push_rates_pkey PRIMARY KEY (queue_id)
)
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
