-- penstock.finish_act(of_act, new_result)
--
-- Writes what came of an act that was recorded before it was done. A result is written once.
--
-- Parameters: of_act - what record_act returned; new_result - ok, or the code of the error.
-- Returns: nothing.
-- Calls: nothing. Tables: audit_log (update).
-- Granted to: gateway.
CREATE OR REPLACE FUNCTION penstock.finish_act(of_act bigint, new_result text)
RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE penstock.audit_log a SET result = left(new_result, 100) WHERE a.act_id = of_act AND a.result = 'begun'
$$;
