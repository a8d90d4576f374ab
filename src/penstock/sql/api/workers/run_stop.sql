-- penstock.run_stop(run)
--
-- Says whether the workers of a run were told to stop. Workers in Spark executors ask about once a second.
--
-- Parameters: run.
-- Returns: null while nobody stopped it; then whether items are to be given back at once.
-- Calls: nothing. Tables: stopped_runs (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.run_stop(run text)
RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.at_once FROM penstock.stopped_runs s WHERE s.run = run_stop.run
$$;
