-- penstock.require_due(delay, due_at)
--
-- Raises an error if a delay or a due time is out of range.
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
        RAISE EXCEPTION 'a message can have a delay or a due time, but not both' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF delay NOT BETWEEN 0 AND 3155760000 THEN
        RAISE EXCEPTION 'delay is % but must be from 0 to 3155760000 seconds', delay
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT isfinite(due_at) OR due_at > clock_timestamp() + interval '100 years' THEN
        RAISE EXCEPTION 'due time is % but must be within a hundred years from now', due_at
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;
