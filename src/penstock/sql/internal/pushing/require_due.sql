-- penstock.require_due(delay, due_at)
--
-- Refuses a delay or a due time that nobody can mean.
--
-- Parameters: delay - seconds, or null; due_at - a time, or null. At most one of them.
-- Returns: nothing; raises invalid_parameter_value.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_due(delay float8, due_at timestamptz)
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF delay IS NOT NULL AND due_at IS NOT NULL THEN
        RAISE EXCEPTION 'a message has a delay or a due time, and not both' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF delay NOT BETWEEN 0 AND 3155760000 THEN
        RAISE EXCEPTION 'a delay is a number of seconds from 0 to 3155760000, and this one is %', delay
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT isfinite(due_at) OR due_at > clock_timestamp() + interval '100 years' THEN
        RAISE EXCEPTION 'a due time lies within a hundred years, and this one is %', due_at
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;
