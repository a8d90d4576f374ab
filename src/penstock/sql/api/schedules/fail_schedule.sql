-- penstock.fail_schedule(schedule_name, problem)
--
-- Notes why a schedule could not be fired, for list_schedules. It stays due.
--
-- Parameters: the name; problem - what went wrong.
-- Returns: nothing.
-- Calls: policy_clock. Tables: schedules (update).
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.fail_schedule(schedule_name text, problem text)
RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
    UPDATE penstock.schedules s SET error = left(problem, 2000), failed_at = penstock.policy_clock()
    WHERE s.name = schedule_name AND s.error IS DISTINCT FROM left(problem, 2000)
$$;
