-- The sweep: who sweeps, and timers that failed.

-- Has no rows: a sweep locks the table. Not an advisory lock, which everybody who may log in can take.
CREATE TABLE penstock.sweep_lock ();

-- Timers that failed and were postponed, so that they do not hold up others. `place` identifies the timer within its
-- kind: the version of a journal row, the first offset of a claim or late wake-up, the id of a scheduled message. A
-- row is deleted when its timer succeeds or no longer exists. For the kind `maintenance`, partition_id is the
-- partition in which maintenance failed, 0 for work that is not of one partition; the row is deleted when maintenance
-- succeeds there.
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
        kind IN ('journal', 'claim', 'late_wakeup', 'enrolment', 'scheduled', 'sweep', 'maintenance', 'limits')
    )
);
