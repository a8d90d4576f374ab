-- The sweep: who sweeps, and timers that failed.

-- Has no rows, and never will: whoever sweeps locks it. An advisory lock can be taken by everybody who may log in.
CREATE TABLE penstock.sweep_lock ();

-- Timers that failed and were put off, so that they hold up no other. `place` says which one of its kind it is: the version of
-- a journal row, the first offset of a claim or late wake-up, the id of what is scheduled. A row goes when its timer works
-- again, or is gone. Of kind `maintenance`, partition_id says which partition maintenance could not look after, 0 what is
-- not of one partition; a row goes when maintenance gets through there again.
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
        kind IN ('journal', 'claim', 'late_wakeup', 'enrolment', 'scheduled', 'sweep', 'maintenance')
    )
);
