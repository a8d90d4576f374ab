-- penstock.delete_schedule(schedule_name)
--
-- Deletes a schedule. What it has pushed stays.
--
-- Parameters: the name.
-- Returns: nothing; raises undefined_object.
-- Calls: use_lock_timeout, require_schedule. Tables: schedules (delete).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.delete_schedule(schedule_name text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
BEGIN
    PERFORM penstock.use_lock_timeout();
    PERFORM penstock.require_schedule(schedule_name);
    DELETE FROM penstock.schedules s WHERE s.name = schedule_name;
END
$$;
