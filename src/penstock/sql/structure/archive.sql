-- The archive: which ranges of which partitions lie in Parquet files, so that the log and its archive are read as one.
--
-- Nothing here has a row per message: a range is as much of a partition as one row group of a file holds.

-- A run of `penstock archive`, known before it writes its first file, so that the files it leaves behind can be told
-- from those of others. It counts once `recorded_at` is set. A run that was given up can never be recorded.
CREATE TABLE penstock.archives (
    archive_id  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id    integer     NOT NULL,
    run         text        NOT NULL DEFAULT gen_random_uuid()::text,
    location    text        NOT NULL,
    given_up    boolean     NOT NULL DEFAULT false,
    begun_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    recorded_at timestamptz,
    CONSTRAINT archives_run_is_unique UNIQUE (run)
);
CREATE INDEX archives_by_queue ON penstock.archives (queue_id, archive_id);

-- A file of a run, by its path below the run's location.
CREATE TABLE penstock.archive_files (
    file_id    bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    archive_id bigint  NOT NULL,
    path       text    NOT NULL,
    bytes      bigint  NOT NULL,
    checksum   text    NOT NULL
);
CREATE INDEX archive_files_by_archive ON penstock.archive_files (archive_id);

-- What is archived of a partition: the messages from `start_offset` to `stop_offset` are the rows from `first_row` on
-- of one row group of a file. `unbroken_from` is the first offset from which on nothing is missing up to here.
CREATE TABLE penstock.archived (
    partition_id  bigint      NOT NULL,
    start_offset  bigint      NOT NULL,
    stop_offset   bigint      NOT NULL,
    unbroken_from bigint      NOT NULL,
    file_id       bigint      NOT NULL,
    row_group     integer     NOT NULL,
    first_row     bigint      NOT NULL,
    bytes         bigint      NOT NULL,
    first_time    timestamptz NOT NULL,
    last_time     timestamptz NOT NULL,
    CONSTRAINT archived_pkey PRIMARY KEY (partition_id, start_offset),
    CONSTRAINT archived_is_a_range CHECK (0 <= unbroken_from AND unbroken_from <= start_offset AND start_offset < stop_offset)
);
