-- penstock.require_schedule(schedule_name)
--
-- Locks a schedule that must exist, until the end of the transaction.
--
-- Parameters: the name.
-- Returns: nothing; raises undefined_object.
-- Calls: nothing. Tables: schedules (lock).
CREATE OR REPLACE FUNCTION penstock.require_schedule(schedule_name text)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1 FROM penstock.schedules s WHERE s.name = schedule_name FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no schedule "%"', schedule_name
            USING ERRCODE = 'undefined_object', HINT = '"penstock schedule list" lists those there are.';
    END IF;
END
$$;
