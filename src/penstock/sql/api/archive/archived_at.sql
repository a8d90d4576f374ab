-- penstock.archived_at(partition_ids, moment)
--
-- Finds a time in the archive of partitions, as far as that is possible without reading the files: the first range
-- below the floor of the log with a message that is not older than `moment`.
--
-- Parameters: partition_ids, moment.
-- Returns: a row per partition that has such a range: its offsets, whether none of its messages is older (then the
-- first one is the answer), and its place in the files, as in plan_archived.
-- Calls: partition_span. Tables: archived, archive_files, archives (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.archived_at(partition_ids bigint[], moment timestamptz)
RETURNS TABLE (
    partition_id bigint, start_offset bigint, stop_offset bigint, bytes bigint,
    location text, path text, file_id bigint, row_group integer, first_row bigint, begins_there boolean
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
        a.partition_id, a.start_offset, a.stop_offset, a.bytes, v.location, f.path, f.file_id, a.row_group, a.first_row,
        a.first_time >= moment
    FROM unnest(partition_ids) w (partition_id)
    CROSS JOIN LATERAL penstock.partition_span(w.partition_id) s
    CROSS JOIN LATERAL (
        -- Times never go back, so this is the one that holds the moment, or the first after it.
        SELECT a.* FROM penstock.archived a
        WHERE a.partition_id = w.partition_id AND a.last_time >= moment AND a.start_offset < s.floor_offset
        ORDER BY a.start_offset
        LIMIT 1
    ) a
    JOIN penstock.archive_files f ON f.file_id = a.file_id
    JOIN penstock.archives v ON v.archive_id = f.archive_id
$$;
