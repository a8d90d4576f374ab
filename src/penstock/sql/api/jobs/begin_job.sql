-- penstock.begin_job(job_kind, queue_name, job_filter, expected, caller)
--
-- Notes that somebody begins a job: redriving or discarding dead letters by a filter. Jobs of more than a week ago are
-- forgotten.
--
-- Parameters: job_kind - redrive or discard; queue_name; job_filter - what it is about, as JSON; expected - how many
-- there are; caller - who asked for it, null if nobody knows.
-- Returns: the id of the job.
-- Calls: find_queue. Tables: jobs (insert, delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.begin_job(
    job_kind text, queue_name text, job_filter jsonb, expected bigint, caller text DEFAULT NULL
)
RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    id uuid;
BEGIN
    IF job_kind IS NULL OR job_kind NOT IN ('redrive', 'discard') THEN
        RAISE EXCEPTION 'a job redrives or discards, and "%" is neither', job_kind
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.find_queue(queue_name);
    DELETE FROM penstock.jobs j WHERE j.changed_at < clock_timestamp() - interval '7 days';
    INSERT INTO penstock.jobs AS j (kind, queue_name, filter, total, started_by)
    VALUES (job_kind, queue_name, job_filter, expected, caller)
    RETURNING j.job_id INTO id;
    RETURN id;
END
$$;
