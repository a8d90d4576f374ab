-- 0018_nulls: a message may have no value at all, as Kafka's tombstones do, and so may its dead letter.
--
-- `segments` and `scheduled` need no other columns: where a value is null, `ends` has a byte per message after its
-- four per message (see null_flags).
ALTER TABLE penstock.dead_letters ALTER COLUMN payload DROP NOT NULL;
