-- Jobs: long work that a gateway does for somebody, and how far it is.

-- Long work that a gateway does for somebody: redriving or discarding dead letters by a filter. The gateway that took
-- it writes how far it is, a row update per chunk, and any gateway can show it or ask it to stop.
CREATE TABLE penstock.jobs (
    job_id     uuid        NOT NULL DEFAULT gen_random_uuid(),
    kind       text        NOT NULL,
    queue_name text        NOT NULL,
    filter     jsonb       NOT NULL,
    started_by text,
    state      text        NOT NULL DEFAULT 'running',
    total      bigint      NOT NULL,
    done       bigint      NOT NULL DEFAULT 0,
    error      text,
    stopping   boolean     NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT jobs_pkey PRIMARY KEY (job_id),
    CONSTRAINT jobs_state_is_known CHECK (state IN ('running', 'done', 'stopped', 'failed'))
)
WITH (fillfactor = 50);
