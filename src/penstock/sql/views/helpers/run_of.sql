-- penstock.run_of(run_counts, index, total)
--
-- Finds the run that a message of a merged segment belongs to.
--
-- Parameters: run_counts - how many messages each run has; index - the message's index in the segment, from 0; total -
-- how many messages the segment has.
-- Returns: the run's number, from 1, and how many messages lie before it.
-- Calls: nothing. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.run_of(run_counts integer[], index integer, total integer)
RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    size   integer;
    run    integer := 0;
    before integer := 0;
BEGIN
    -- Of messages that were pushed one by one each is a run, and nothing has to be counted.
    IF cardinality(run_counts) = total THEN
        RETURN ARRAY[index + 1, index];
    END IF;
    FOREACH size IN ARRAY run_counts LOOP
        run := run + 1;
        EXIT WHEN index < before + size;
        before := before + size;
    END LOOP;
    RETURN ARRAY[run, before];
END
$$;
