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
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN run_counts IS NULL THEN created_at ELSE (
        SELECT r.created_at
        FROM (
            SELECT u.created_at, sum(u.messages) OVER (ORDER BY u.position) AS until
            FROM unnest(run_counts, run_times) WITH ORDINALITY u (messages, created_at, position)
        ) r
        WHERE r.until > index
        ORDER BY r.until
        LIMIT 1
    ) END
$$;
