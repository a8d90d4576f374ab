-- penstock.time_in_runs(created_at, run_counts, run_times, index)
--
-- The time of one message of a segment.
--
-- Parameters: the segment's columns, and the message's index in it, from 0.
-- Returns: the time.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.time_in_runs(
    created_at timestamptz, run_counts integer[], run_times timestamptz[], index integer
)
RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    -- Assigned, and so fetched from storage once.
    counts integer[] := run_counts;
    run    integer := 1;
    run_to integer := counts[1];
BEGIN
    IF counts IS NULL THEN
        RETURN created_at;
    END IF;
    WHILE index >= run_to LOOP
        run := run + 1;
        run_to := run_to + counts[run];
    END LOOP;
    RETURN run_times[run];
END
$$;
