-- penstock.try_timer(kind, target_group, target, place)
--
-- Fires one timer. If that fails, it is rolled back and the timer is postponed.
--
-- Parameters: those of serve_timer.
-- Returns: whether it was fired; null if it failed.
-- Calls: serve_timer, put_off. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.try_timer(kind text, target_group integer, target bigint, place bigint)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    problem text;
    state   text;
BEGIN
    BEGIN
        RETURN penstock.serve_timer(kind, target_group, target, place);
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
    END;
    PERFORM penstock.put_off(kind, target_group, target, place, state, problem);
    RETURN NULL;
END
$$;
