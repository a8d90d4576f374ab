-- penstock.list_jobs(wanted_id, max_rows)
--
-- Lists jobs, the newest first. One that runs and has said nothing for 60 seconds is lost: its gateway is gone, what
-- it had done is done, and it can be begun anew.
--
-- Parameters: wanted_id - one job, null for all; max_rows - the largest number of rows.
-- Returns: a row per job.
-- Calls: nothing. Tables: jobs (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.list_jobs(wanted_id uuid DEFAULT NULL, max_rows integer DEFAULT 100)
RETURNS TABLE (
    job_id uuid, kind text, queue text, filter jsonb, started_by text, state text, total bigint, done bigint,
    error text, created_at timestamptz, changed_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT
        j.job_id, j.kind, j.queue_name, j.filter, j.started_by,
        CASE
            WHEN j.state = 'running' AND j.changed_at < clock_timestamp() - interval '60 seconds' THEN 'lost'
            WHEN j.state = 'running' AND j.stopping THEN 'stopping'
            ELSE j.state
        END,
        j.total, j.done, j.error, j.created_at, j.changed_at
    FROM penstock.jobs j
    WHERE wanted_id IS NULL OR j.job_id = wanted_id
    ORDER BY j.created_at DESC, j.job_id
    LIMIT max_rows;
END
$$;
