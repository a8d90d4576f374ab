-- penstock.stop_run(run, at_once)
--
-- Tells the workers of a run to stop: those that run in Spark executors, where no signal reaches them, ask for it about
-- once a second. What was stopped more than a day ago is forgotten.
--
-- Parameters: run - the name of the run, which only its driver and its workers know; at_once - whether items whose
-- handlers run are given back without waiting for the handlers. A run that is stopped at once stays so.
-- Returns: nothing.
-- Calls: nothing. Tables: stopped_runs (insert, update, delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.stop_run(run text, at_once boolean)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF stop_run.run IS NULL OR stop_run.at_once IS NULL OR octet_length(stop_run.run) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'give a run, with a name of at most 255 bytes, and whether to stop at once'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    DELETE FROM penstock.stopped_runs s WHERE s.stopped_at < clock_timestamp() - interval '1 day';
    INSERT INTO penstock.stopped_runs AS s (run, at_once) VALUES (stop_run.run, stop_run.at_once)
    ON CONFLICT (run) DO UPDATE SET at_once = s.at_once OR excluded.at_once;
END
$$;
