-- penstock.record_archive(run, paths, sizes, checksums, partition_ids, starts, stops, files, row_groups, first_rows,
--                         bytes, first_times, last_times)
--
-- Records a run whose files were verified. When this transaction commits, its ranges are archived: all of them or
-- none. A run that was given up is refused. The ranges of a partition must begin where its archive ends, or at the
-- floor if that is later, and have no gap. If one of the partitions was deleted meanwhile, nothing is recorded.
--
-- Parameters: run - as begin_archive named it; paths, sizes, checksums - the files, as parallel arrays; the others -
-- the ranges, as parallel arrays: files - positions in `paths`, from 1; first_rows - the position of the range in its
-- row group; bytes - the approximate size of the messages.
-- Returns: the number of messages recorded. To record a run again does nothing.
-- Calls: require_read_committed, archived_to, partition_span. Tables: archives (lock, update), partitions (lock),
-- archive_files, archived (insert).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.record_archive(
    run text, paths text[], sizes bigint[], checksums text[],
    partition_ids bigint[], starts bigint[], stops bigint[], files integer[], row_groups integer[], first_rows bigint[],
    bytes bigint[], first_times timestamptz[], last_times timestamptz[]
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    archive record;
    broken  record;
    numbers bigint[];
BEGIN
    PERFORM penstock.require_read_committed('record_archive');
    IF (cardinality(paths) = ALL (ARRAY[cardinality(sizes), cardinality(checksums)])) IS NOT TRUE
       OR (cardinality(partition_ids) = ALL (ARRAY[
           cardinality(starts), cardinality(stops), cardinality(files), cardinality(row_groups),
           cardinality(first_rows), cardinality(bytes), cardinality(first_times), cardinality(last_times)
       ])) IS NOT TRUE
    THEN
        RAISE EXCEPTION 'the arrays of files must be of one length, and so must those of ranges'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT a.archive_id, a.queue_id, a.given_up, a.recorded_at INTO archive
    FROM penstock.archives a
    WHERE a.run = record_archive.run
    FOR UPDATE;
    IF NOT FOUND OR archive.given_up THEN
        RAISE EXCEPTION 'archive run % was given up, because another one has begun; nothing was recorded', run
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF archive.recorded_at IS NOT NULL THEN
        -- The same run comes twice when its connection broke and it does not know.
        RETURN (
            SELECT coalesce(sum(d.stop_offset - d.start_offset), 0)::bigint
            FROM penstock.archived d
            WHERE d.file_id IN (SELECT f.file_id FROM penstock.archive_files f WHERE f.archive_id = archive.archive_id)
        );
    END IF;
    -- Against a deletion; pushes do not mind.
    PERFORM 1 FROM penstock.partitions p
    WHERE p.partition_id = ANY (partition_ids)
    ORDER BY p.partition_id
    FOR KEY SHARE;
    SELECT r.* INTO broken
    FROM (
        SELECT
            r.partition_id, r.start, r.stop, p.queue_id,
            lag(r.stop) OVER ascending AS last_stop,
            -- Readers go through file after file, and want each partition in its order.
            lag(r.place) OVER ascending > r.place AS lies_before
        FROM (
            SELECT r.partition_id, r.start, r.stop, ARRAY[r.file, r.row_group, r.first_row] AS place
            FROM unnest(partition_ids, starts, stops, files, row_groups, first_rows)
                r (partition_id, start, stop, file, row_group, first_row)
        ) r
        LEFT JOIN penstock.partitions p ON p.partition_id = r.partition_id
        WINDOW ascending AS (PARTITION BY r.partition_id ORDER BY r.start)
    ) r
    CROSS JOIN LATERAL penstock.partition_span(r.partition_id) s
    WHERE r.queue_id IS DISTINCT FROM archive.queue_id OR r.stop > s.head_offset OR r.lies_before
       OR coalesce(
           r.last_stop <> r.start,
           r.start < penstock.archived_to(r.partition_id)
           OR r.start > greatest(penstock.archived_to(r.partition_id), s.floor_offset)
       )
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'offsets % to % of partition % do not follow what is archived of it, or it was deleted',
            broken.start, broken.stop, broken.partition_id
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Run it again.';
    END IF;

    numbers := ARRAY(
        SELECT nextval(pg_get_serial_sequence('penstock.archive_files', 'file_id')) FROM generate_series(1, cardinality(paths))
    );
    INSERT INTO penstock.archive_files (file_id, archive_id, path, bytes, checksum) OVERRIDING SYSTEM VALUE
    SELECT f.file_id, archive.archive_id, f.path, f.size, f.checksum
    FROM unnest(numbers, paths, sizes, checksums) f (file_id, path, size, checksum);
    INSERT INTO penstock.archived (
        partition_id, start_offset, stop_offset, unbroken_from, file_id, row_group, first_row, bytes, first_time, last_time
    )
    SELECT
        r.partition_id, r.start, r.stop,
        -- The ranges of a run are unbroken, and go on with what is there where they begin at its end.
        coalesce((
            SELECT CASE WHEN a.stop_offset = r.first THEN a.unbroken_from END FROM penstock.archived a
            WHERE a.partition_id = r.partition_id
            ORDER BY a.start_offset DESC
            LIMIT 1
        ), r.first),
        numbers[r.file], r.row_group, r.first_row, r.bytes, r.first_time, r.last_time
    FROM (
        SELECT r.*, min(r.start) OVER (PARTITION BY r.partition_id) AS first
        FROM unnest(
            partition_ids, starts, stops, files, row_groups, first_rows, bytes, first_times, last_times
        ) r (partition_id, start, stop, file, row_group, first_row, bytes, first_time, last_time)
    ) r;
    UPDATE penstock.archives a SET recorded_at = clock_timestamp() WHERE a.archive_id = archive.archive_id;
    RETURN (SELECT coalesce(sum(r.stop - r.start), 0)::bigint FROM unnest(starts, stops) r (start, stop));
END
$$;
