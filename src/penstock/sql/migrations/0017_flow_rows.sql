-- 0017_flow_rows: what becomes of the rows of flows: those that came too late, and those of several messages that failed.

-- How many rows came behind the watermark of a flow, so that Spark dropped them.
ALTER TABLE penstock.flow_states ADD COLUMN late_rows bigint NOT NULL DEFAULT 0;

-- A row that is made of several messages makes dead letters of all of them. Redriven, they shall make that row again and
-- no other, so each knows by these ids which rows it failed with.
ALTER TABLE penstock.staged_dead_letters ADD COLUMN row_ids text[];
ALTER TABLE penstock.dead_letters ADD COLUMN row_ids text[];
