-- penstock.report_tasks(worker, tasks)
--
-- Says what a worker process is at. Rows of workers that have said nothing for an hour go, too.
--
-- Parameters: worker - the name of the process; tasks - a JSON list of objects with action_class, flow, action, did,
-- message_id, started_at, attempt, percent and text; an empty list takes the row away.
-- Returns: nothing.
-- Calls: nothing. Tables: running_tasks (insert, update, delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.report_tasks(worker text, tasks jsonb)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF jsonb_typeof(tasks) IS DISTINCT FROM 'array' OR worker IS NULL THEN
        RAISE EXCEPTION 'give a worker, and its tasks as a JSON list' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(worker) NOT BETWEEN 1 AND 1000 OR jsonb_array_length(tasks) > 1000 OR octet_length(tasks::text) > 2000000 THEN
        RAISE EXCEPTION 'the name of a worker has at most 1000 bytes, and its report at most 1000 tasks and 2 MB'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Read as list_tasks reads them, which must not fail because of one worker.
    BEGIN
        PERFORM count(*) FROM jsonb_to_recordset(tasks) t (
            action_class text, flow text, action text, did uuid, message_id uuid, started_at timestamptz, attempt integer,
            percent double precision, text text
        )
        WHERE t.started_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00' OR t.did IS NULL
           OR num_nulls(t.flow, t.action, t.action_class, t.message_id, t.attempt, t.started_at) > 0
        HAVING count(*) > 0;
        IF FOUND THEN
            RAISE EXCEPTION 'something is missing' USING ERRCODE = 'invalid_parameter_value';
        END IF;
    EXCEPTION WHEN data_exception THEN
        RAISE EXCEPTION 'the tasks of a worker cannot be read: %', SQLERRM USING ERRCODE = 'invalid_parameter_value';
    END;
    DELETE FROM penstock.running_tasks r WHERE r.heartbeat_at < clock_timestamp() - interval '1 hour';
    IF jsonb_array_length(tasks) = 0 THEN
        DELETE FROM penstock.running_tasks r WHERE r.worker = report_tasks.worker;
        RETURN;
    END IF;
    INSERT INTO penstock.running_tasks (worker, tasks) VALUES (report_tasks.worker, report_tasks.tasks)
    ON CONFLICT (worker) DO UPDATE SET tasks = excluded.tasks, heartbeat_at = clock_timestamp();
END
$$;
