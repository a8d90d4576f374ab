-- 0016_readings: the ledger knows where an epoch went and what it read, and a group knows which query it follows.

-- `target` is the queue that the sink was given, empty where each row names its own; `reading` the offsets of all sources
-- as Spark's checkpoint has them, where the sink could read it; `queues` those that the query has written to so far.
-- All three are null in rows from before.
ALTER TABLE penstock.sink_commits
    ADD COLUMN target  text,
    ADD COLUMN reading text,
    ADD COLUMN queues  text[];

-- Of an external group, the lineage of snapshots whose progress it is. Another one that takes the group over is written
-- here, and the former is refused: a group with two readers would let retention drop what the slower has to read.
ALTER TABLE penstock.consumer_groups ADD COLUMN lineage bigint;

-- The snapshot after another one is looked for whether it is known to be published or not.
DROP INDEX penstock.snapshots_published;
CREATE INDEX snapshots_by_parent ON penstock.snapshots (parent) WHERE parent > 0;
