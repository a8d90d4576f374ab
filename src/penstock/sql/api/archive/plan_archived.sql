-- penstock.plan_archived(partition_ids, starts, stops)
--
-- Finds archived messages in the files of the archive.
--
-- Parameters: parallel arrays, one entry per range of offsets.
-- Returns: a row per part of a range that is in one row group of one file, in the order of the ranges and of their
-- offsets: its first row, its approximate bytes, and the file by location and path. Ordered by file_id, row_group and
-- first_row, the offsets of each partition ascend too. Messages that are not archived are in no row.
-- Calls: nothing. Tables: archived, archive_files, archives (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.plan_archived(partition_ids bigint[], starts bigint[], stops bigint[])
RETURNS TABLE (
    partition_id bigint, start_offset bigint, stop_offset bigint, bytes bigint,
    location text, path text, file_id bigint, row_group integer, first_row bigint
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
    SELECT
        a.partition_id, greatest(a.start_offset, r.start), least(a.stop_offset, r.stop),
        a.bytes * (least(a.stop_offset, r.stop) - greatest(a.start_offset, r.start)) / (a.stop_offset - a.start_offset),
        v.location, f.path, f.file_id, a.row_group, a.first_row + greatest(r.start - a.start_offset, 0)
    FROM unnest(partition_ids, starts, stops) WITH ORDINALITY r (partition_id, start, stop, position)
    CROSS JOIN LATERAL (
        SELECT a.* FROM penstock.archived a
        WHERE a.partition_id = r.partition_id
          AND a.start_offset >= coalesce((
              SELECT b.start_offset FROM penstock.archived b
              WHERE b.partition_id = r.partition_id AND b.start_offset <= r.start
              ORDER BY b.start_offset DESC
              LIMIT 1
          ), 0)
          AND a.start_offset < r.stop AND a.stop_offset > r.start
    ) a
    JOIN penstock.archive_files f ON f.file_id = a.file_id
    JOIN penstock.archives v ON v.archive_id = f.archive_id
    ORDER BY r.position, a.start_offset
$$;
