-- 0007_trimmed: what keeps a caller with an old snapshot from taking the first offset of a partition again.

-- Partitions whose segment at offset 0 is gone. A REPEATABLE READ caller whose snapshot shows a partition empty would
-- number from 0: while that segment is there its key refuses this, and afterwards the key of this table does.
CREATE TABLE penstock.trimmed (
    partition_id bigint NOT NULL,
    CONSTRAINT trimmed_pkey PRIMARY KEY (partition_id)
);
