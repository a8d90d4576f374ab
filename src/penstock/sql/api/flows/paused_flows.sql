-- penstock.paused_flows()
--
-- Returns the flows that are to pause. Supervisors call it about once a second.
--
-- Returns: their names.
-- Calls: nothing. Tables: flows (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.paused_flows()
RETURNS text[]
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ARRAY(SELECT f.name FROM penstock.flows f WHERE f.paused ORDER BY f.name)
$$;
