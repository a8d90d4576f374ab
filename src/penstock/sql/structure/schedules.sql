-- Schedules: what pushes a message at each of its slots.

-- A row is a schedule: when its slots are, what it pushes, and where it stands. All slots up to `done_to` are done:
-- pushed, or left out because nobody was there to push them. `next_at` is the first one after it, null if there is none.
-- Neither goes back, whatever the clock does, so no slot is pushed twice. Slots are computed by the clients, which know
-- cron expressions and time zones; who has computed some names the `revision` of the definition and the `done_to` that
-- it saw, and changes nothing if they are others by then.
-- `origin` is the file that declares a schedule whose source is 'code', and `undeclared_at` is since when that file does
-- not declare it any more.
CREATE TABLE penstock.schedules (
    name          text        NOT NULL,
    kind          text        NOT NULL,
    spec          text        NOT NULL,
    tz            text        NOT NULL,
    start_at      timestamptz,
    queue         text        NOT NULL,
    partition     text,
    key           text,
    headers       jsonb,
    value         bytea,
    missed        text        NOT NULL,
    source        text        NOT NULL,
    origin        text,
    undeclared_at timestamptz,
    paused        boolean     NOT NULL DEFAULT false,
    revision      bigint      NOT NULL DEFAULT 1,
    done_to       timestamptz NOT NULL,
    next_at       timestamptz,
    last_slot     timestamptz,
    last_at       timestamptz,
    last_id       uuid,
    error         text,
    failed_at     timestamptz,
    created_at    timestamptz NOT NULL,
    changed_at    timestamptz NOT NULL,
    CONSTRAINT schedules_pkey PRIMARY KEY (name),
    CONSTRAINT schedules_name_is_valid CHECK (
        octet_length(name) BETWEEN 1 AND 255 AND name !~ '[\u0001-\u001f\u007f-\u009f]'
    ),
    CONSTRAINT schedules_kind_is_known CHECK (kind IN ('every', 'cron')),
    CONSTRAINT schedules_missed_is_known CHECK (missed IN ('skip', 'last', 'all')),
    CONSTRAINT schedules_source_is_known CHECK (source IN ('code', 'command')),
    CONSTRAINT schedules_next_is_not_done CHECK (next_at > done_to)
);
CREATE INDEX schedules_due ON penstock.schedules (next_at) WHERE NOT paused;
