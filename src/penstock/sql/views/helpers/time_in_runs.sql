-- penstock.time_in_runs(created_at, run_counts, run_times, index)
--
-- Returns the time of one message of a segment.
--
-- Parameters: the segment's columns, and the message's index in it, from 0.
-- Returns: the time.
-- Calls: run_of. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.time_in_runs(
    created_at timestamptz, run_counts integer[], run_times timestamptz[], index integer
)
RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN run_counts IS NULL THEN created_at ELSE run_times[(penstock.run_of(run_counts, index, NULL))[1]] END
$$;
