-- penstock.list_archives(queue_name)
--
-- Lists the recorded runs of `penstock archive`, oldest first.
--
-- Parameters: queue_name - null for all; a name that does not exist is an error.
-- Returns: a row per run: its location, the number of its partitions, messages, files and bytes, and the times of its
-- first and last message.
-- Calls: find_queue. Tables: archives, archive_files, archived, queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_archives(queue_name text DEFAULT NULL)
RETURNS TABLE (
    queue text, run text, location text, recorded_at timestamptz, partitions bigint, messages bigint,
    files bigint, bytes bigint, first_time timestamptz, last_time timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted integer := CASE WHEN queue_name IS NOT NULL THEN penstock.find_queue(queue_name) END;
BEGIN
    RETURN QUERY
    SELECT
        q.name, a.run, a.location, a.recorded_at, d.partitions, coalesce(d.messages, 0)::bigint,
        f.files, coalesce(f.bytes, 0)::bigint, d.first_time, d.last_time
    FROM penstock.archives a
    JOIN penstock.queues q ON q.queue_id = a.queue_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS files, sum(f.bytes) AS bytes
        FROM penstock.archive_files f
        WHERE f.archive_id = a.archive_id
    ) f
    CROSS JOIN LATERAL (
        SELECT
            count(DISTINCT d.partition_id) AS partitions, sum(d.stop_offset - d.start_offset) AS messages,
            min(d.first_time) AS first_time, max(d.last_time) AS last_time
        FROM penstock.archived d
        WHERE d.file_id IN (SELECT f.file_id FROM penstock.archive_files f WHERE f.archive_id = a.archive_id)
    ) d
    WHERE a.recorded_at IS NOT NULL AND (wanted IS NULL OR a.queue_id = wanted)
    ORDER BY a.archive_id;
END
$$;
