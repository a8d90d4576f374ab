-- penstock.epoch_ranges(writer, run)
--
-- Returns the ranges of the epoch that a run of a query has begun and not published: the failing message is among
-- them.
--
-- Parameters: writer, run - as in begin_stage.
-- Returns: a row per range; none if no epoch was begun.
-- Calls: nothing. Tables: epoch_sources, snapshots, partitions, queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.epoch_ranges(writer text, run text)
RETURNS TABLE (partition_id bigint, queue_name text, partition_name text, start_offset bigint, stop_offset bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT u.partition_id, q.name, p.name, u.start, u.stop
    FROM penstock.epoch_sources e
    JOIN penstock.snapshots s ON s.snapshot_id = e.snapshot_id
    CROSS JOIN LATERAL unnest(s.partition_ids, s.starts, s.ends) u (partition_id, start, stop)
    JOIN penstock.partitions p ON p.partition_id = u.partition_id
    JOIN penstock.queues q ON q.queue_id = p.queue_id
    WHERE e.writer = epoch_ranges.writer AND e.run = epoch_ranges.run
      AND e.epoch = (
          SELECT max(n.epoch) FROM penstock.epoch_sources n
          WHERE n.writer = epoch_ranges.writer AND n.run = epoch_ranges.run
      )
$$;
