-- Workers: what they are at, and which are to stop. Actions themselves are in the registry, with the flows.

-- One row per worker process, rewritten every few seconds while it handles something: a list of the items at hand. So
-- an item costs no write. A row that is 30 seconds old is not believed any more.
CREATE TABLE penstock.running_tasks (
    worker       text        NOT NULL,
    heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    tasks        jsonb       NOT NULL,
    CONSTRAINT running_tasks_pkey PRIMARY KEY (worker)
)
WITH (fillfactor = 50);

-- Runs of workers that were told to stop. No signal reaches a worker in a Spark executor: it asks here. A row is written
-- when a run is stopped, and kept for a day.
CREATE TABLE penstock.stopped_runs (
    run        text        NOT NULL,
    at_once    boolean     NOT NULL,
    stopped_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT stopped_runs_pkey PRIMARY KEY (run),
    CONSTRAINT stopped_runs_run_is_valid CHECK (octet_length(run) BETWEEN 1 AND 255)
);
