-- penstock.pause_schedule(schedule_name)
--
-- Pauses a schedule: none of its slots is pushed until resume_schedule.
--
-- Parameters: the name.
-- Returns: nothing; raises undefined_object.
-- Calls: use_lock_timeout, require_schedule, policy_clock. Tables: schedules (update).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.pause_schedule(schedule_name text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
BEGIN
    PERFORM penstock.use_lock_timeout();
    PERFORM penstock.require_schedule(schedule_name);
    UPDATE penstock.schedules s SET paused = true, changed_at = penstock.policy_clock()
    WHERE s.name = schedule_name AND NOT s.paused;
END
$$;
