-- Pushing: what a push may have beyond messages: a stamp to be repeated safely, a delay, dedupe ids, unique keys.

-- Scheduled messages: a packed segment that has no offset until it is due. The sweep deletes the row
-- and appends the segment in one transaction, so it gets its offset once. Messages with a
-- dedupe id have it in `dedupe_ids`, and their position in the segment in `dedupe_positions`. One with a unique key is
-- alone in its segment (`is_unique`).
CREATE SEQUENCE penstock.scheduled_seq;
CREATE TABLE penstock.scheduled (
    scheduled_id bigint      NOT NULL,
    queue_id     integer     NOT NULL,
    partition_id bigint      NOT NULL,
    due_at       timestamptz NOT NULL,
    created_at   timestamptz NOT NULL,
    count        integer     NOT NULL,
    bytes        integer     NOT NULL,
    body         bytea       NOT NULL,
    ends         bytea       NOT NULL,
    keys         bytea,
    key_ends     bytea,
    headers      bytea,
    header_ends  bytea,
    dedupe_ids       text[],
    dedupe_positions integer[],
    is_unique        boolean NOT NULL DEFAULT false,
    CONSTRAINT scheduled_pkey PRIMARY KEY (scheduled_id)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX scheduled_due ON penstock.scheduled (due_at, scheduled_id);
CREATE INDEX scheduled_by_queue ON penstock.scheduled (queue_id, due_at, scheduled_id);

-- The ids under which messages of a partition count once. `seen_at` is the time of the message, and the window is
-- compared with it: a row that outlived its window means nothing. While its message is scheduled a row has no offset
-- but `scheduled_id`, and `seen_at` is infinity: its window begins when the message gets its offset.
CREATE TABLE penstock.dedupe_ids (
    partition_id   bigint      NOT NULL,
    dedupe_id      text        NOT NULL,
    queue_id       integer     NOT NULL,
    seen_at        timestamptz NOT NULL,
    message_offset bigint,
    scheduled_id   bigint,
    CONSTRAINT dedupe_ids_pkey PRIMARY KEY (partition_id, dedupe_id)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX dedupe_ids_by_age ON penstock.dedupe_ids (queue_id, seen_at);

-- What pushes answered, so that a push whose answer was lost can be repeated: one row per call, whatever it pushed.
-- Pushes of one producer commit in any order, because it has many connections; so each is known by itself, and a gap
-- in the sequence means nothing. Most pushes are one segment, and their rows are small: its place, and its time, which
-- is `pushed_at`. The arrays are for those of many, and `answer` is the longer one of push_with_options.
CREATE TABLE penstock.producers (
    producer      uuid        NOT NULL,
    sequence      bigint      NOT NULL,
    pushed_at     timestamptz NOT NULL,
    partition_id  bigint,
    first_offset  bigint,
    count         integer,
    partition_ids bigint[],
    first_offsets bigint[],
    counts        integer[],
    times         timestamptz[],
    answer        jsonb,
    CONSTRAINT producers_pkey PRIMARY KEY (producer, sequence)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX producers_by_age ON penstock.producers (pushed_at);

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
