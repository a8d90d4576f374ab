-- penstock.begin_archive(queue_name, location)
--
-- Begins an archive run. Takes the queue's archive lock until this connection ends, and gives up all runs that were
-- begun and never recorded: a process that lost its connection, and with it the lock, can no longer record its run.
--
-- Parameters: location - where the files will be.
-- Returns: the name of the run, and the names and locations of the runs that were given up, whose files are to be
-- removed. Raises object_in_use while another connection archives the queue.
-- Calls: require_read_committed, find_queue. Tables: archives (insert, update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.begin_archive(queue_name text, location text)
RETURNS TABLE (run text, left_runs text[], left_locations text[])
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    queue integer := penstock.find_queue(queue_name);
BEGIN
    PERFORM penstock.require_read_committed('begin_archive');
    IF coalesce(begin_archive.location, '') = '' THEN
        RAISE EXCEPTION 'location is empty: give the folder or URL where the files will be'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The class of the lock: see queue_lock_class.
    IF NOT pg_try_advisory_lock(1885695605, queue) THEN
        RAISE EXCEPTION 'queue "%" is being archived by another process', queue_name
            USING ERRCODE = 'object_in_use', HINT = 'Wait until it has ended.';
    END IF;
    UPDATE penstock.archives a SET given_up = true WHERE a.queue_id = queue AND a.recorded_at IS NULL AND NOT a.given_up;
    SELECT array_agg(a.run ORDER BY a.archive_id), array_agg(a.location ORDER BY a.archive_id)
    INTO left_runs, left_locations
    FROM penstock.archives a
    WHERE a.queue_id = queue AND a.given_up;
    INSERT INTO penstock.archives (queue_id, location) VALUES (queue, begin_archive.location)
    RETURNING archives.run INTO run;
    RETURN NEXT;
END
$$;
