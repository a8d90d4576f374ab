-- penstock.require_moments(moments)
--
-- Raises an error for a moment that not every client can read: all of them would stop at the schedule that has it.
--
-- Parameters: moments - any of them may be null.
-- Returns: nothing; raises invalid_parameter_value.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_moments(VARIADIC moments timestamptz[])
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    bad timestamptz;
BEGIN
    -- A day less on both sides, so that it can be written in any time zone.
    SELECT m INTO bad FROM unnest(moments) m WHERE m < '0001-01-02 00:00:00+00' OR m > '9999-12-30 00:00:00+00' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% is not a moment of a schedule, which is in the years from 1 to 9999', bad
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;
