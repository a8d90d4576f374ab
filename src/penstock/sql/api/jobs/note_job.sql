-- penstock.note_job(id, done_so_far, new_state, failure)
--
-- Notes how far a job is. Whoever runs it calls this after each chunk, and at least every 10 seconds.
--
-- Parameters: id - of the job; done_so_far - how many; new_state - running, done, stopped or failed; failure - what
-- went wrong, if anything did.
-- Returns: whether the job is to stop; true also for one that is unknown or has ended.
-- Calls: nothing. Tables: jobs (update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.note_job(id uuid, done_so_far bigint, new_state text, failure text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted boolean;
BEGIN
    UPDATE penstock.jobs j
    SET done = done_so_far, state = new_state, error = failure, changed_at = clock_timestamp(),
        total = greatest(j.total, done_so_far)
    WHERE j.job_id = id AND j.state = 'running'
    RETURNING j.stopping INTO wanted;
    RETURN coalesce(wanted, true);
END
$$;
