-- penstock.require_names(names)
--
-- Refuses names that a queue or partition cannot have, before anything is written.
--
-- Parameters: names - names of queues or partitions.
-- Returns: nothing; raises invalid_parameter_value.
-- Calls: name_problem. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_names(VARIADIC names text[])
RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    problem text;
BEGIN
    SELECT penstock.name_problem(n) INTO problem
    FROM unnest(names) n
    WHERE penstock.name_problem(n) IS NOT NULL
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;
