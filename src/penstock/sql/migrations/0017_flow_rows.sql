-- 0017_flow_rows: what becomes of the rows of flows: those that came too late, and those of several messages that failed.
-- And where partitions ended that were deleted under a reader with positions of its own.

-- How many rows came behind the watermark of a flow, so that Spark dropped them.
ALTER TABLE penstock.flow_states ADD COLUMN late_rows bigint NOT NULL DEFAULT 0;

-- A row that is made of several messages makes dead letters of all of them. Redriven, they shall make that row again and
-- no other, so each knows by these ids which rows it failed with.
ALTER TABLE penstock.staged_dead_letters ADD COLUMN row_ids text[];
ALTER TABLE penstock.dead_letters ADD COLUMN row_ids text[];

-- A reader with positions of its own finds a partition gone, and must know whether it had read it to the end. Kept for 30
-- days, and only of queues that have such a reader.
CREATE TABLE penstock.deleted_partitions (
    partition_id bigint      NOT NULL,
    head_offset  bigint      NOT NULL,
    deleted_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT deleted_partitions_pkey PRIMARY KEY (partition_id)
);
