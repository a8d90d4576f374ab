-- penstock.put_off(kind, target_group, target, place, state, problem)
--
-- Postpones a timer that failed: by a second, and twice as long after each further failure, ten minutes at most.
--
-- Parameters: those of serve_timer; state and problem - the SQLSTATE and the text of the error.
-- Returns: nothing.
-- Calls: nothing. Tables: failing_timers (insert, update).
CREATE OR REPLACE FUNCTION penstock.put_off(
    kind text, target_group integer, target bigint, place bigint, state text, problem text
)
RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO penstock.failing_timers AS f (kind, group_id, partition_id, place, retry_at, sqlstate, error)
    VALUES (
        put_off.kind, target_group, target, put_off.place, clock_timestamp() + interval '1 second', state, left(problem, 1000)
    )
    ON CONFLICT ON CONSTRAINT failing_timers_pkey DO UPDATE
    SET failures = f.failures + 1,
        retry_at = clock_timestamp() + least(interval '10 minutes', interval '1 second' * power(2, least(f.failures, 20))),
        sqlstate = EXCLUDED.sqlstate, error = EXCLUDED.error
$$;
