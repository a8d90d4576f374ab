-- penstock.resume_schedule(schedule_name, seen_revision, seen_done_to, new_done_to, new_next_at)
--
-- Lets a paused schedule go on, if it is as the caller saw it. Slots of the pause are not made up for.
--
-- Parameters: seen_revision and seen_done_to - what the caller saw; new_done_to - all slots up to it are done;
-- new_next_at - the first slot after it, null if there is none.
-- Returns: whether it was as the caller saw it; raises undefined_object.
-- Calls: use_lock_timeout, require_schedule, require_moments, policy_clock. Tables: schedules (update).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.resume_schedule(
    schedule_name text, seen_revision bigint, seen_done_to timestamptz, new_done_to timestamptz, new_next_at timestamptz
)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
BEGIN
    PERFORM penstock.use_lock_timeout();
    PERFORM penstock.require_schedule(schedule_name);
    PERFORM penstock.require_moments(new_done_to, new_next_at);
    UPDATE penstock.schedules s
    SET paused = false, done_to = new_done_to, next_at = new_next_at, changed_at = penstock.policy_clock()
    WHERE s.name = schedule_name AND s.paused AND s.revision = seen_revision AND s.done_to = seen_done_to
      AND new_done_to >= seen_done_to;
    RETURN FOUND;
END
$$;
