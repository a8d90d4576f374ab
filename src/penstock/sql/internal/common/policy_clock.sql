-- penstock.policy_clock()
--
-- Returns the time by which limits, holds, schedules and health go. Nothing else calls the clock for them: a test that
-- replaces this function decides what time it is, and may set it back.
--
-- Parameters: none.
-- Returns: the time.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.policy_clock()
RETURNS timestamptz
LANGUAGE sql VOLATILE
AS $$
    SELECT clock_timestamp()
$$;
