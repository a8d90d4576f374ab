-- penstock.stop_job(id)
--
-- Asks a job to stop after the chunk that it is at. What is done stays done.
--
-- Parameters: id - of the job.
-- Returns: whether it runs; raises undefined_object if there is no such job.
-- Calls: nothing. Tables: jobs (update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.stop_job(id uuid)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    runs boolean;
BEGIN
    UPDATE penstock.jobs j SET stopping = true WHERE j.job_id = id RETURNING j.state = 'running' INTO runs;
    IF runs IS NULL THEN
        RAISE EXCEPTION 'there is no job %', id
            USING ERRCODE = 'undefined_object', HINT = 'Jobs are kept for a week.';
    END IF;
    RETURN runs;
END
$$;
