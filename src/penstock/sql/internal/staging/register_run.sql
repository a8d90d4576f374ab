-- penstock.register_run(writer, run)
--
-- Assigns a number to a run of a writer when it is first seen: a later run has a higher one.
--
-- Parameters: writer - the query's id; run - the id of this start of it.
-- Returns: the number.
-- Calls: require_own_writer. Tables: sink_runs (insert).
CREATE OR REPLACE FUNCTION penstock.register_run(writer text, run text)
RETURNS bigint
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    number bigint;
BEGIN
    PERFORM penstock.require_own_writer(register_run.writer);
    LOOP
        SELECT r.run_number INTO number FROM penstock.sink_runs r
        WHERE r.writer = register_run.writer AND r.run = register_run.run;
        IF FOUND THEN
            RETURN number;
        END IF;
        INSERT INTO penstock.sink_runs (writer, run) VALUES (register_run.writer, register_run.run)
        ON CONFLICT DO NOTHING;
    END LOOP;
END
$$;
