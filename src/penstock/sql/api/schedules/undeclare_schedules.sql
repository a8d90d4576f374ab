-- penstock.undeclare_schedules(declaring_origin, declared)
--
-- Marks the schedules that a file declared before and declares no more. They go on as they are: a file may have been
-- changed by mistake, and another process may run an older one.
--
-- Parameters: declaring_origin - the file; declared - the names that it declares now.
-- Returns: the names that were marked.
-- Calls: policy_clock. Tables: schedules (update).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.undeclare_schedules(declaring_origin text, declared text[])
RETURNS text[]
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
    WITH marked AS (
        UPDATE penstock.schedules s
        SET undeclared_at = penstock.policy_clock()
        WHERE s.source = 'code' AND s.origin = declaring_origin AND s.name <> ALL (declared) AND s.undeclared_at IS NULL
        RETURNING s.name
    )
    SELECT coalesce(array_agg(m.name ORDER BY m.name), '{}') FROM marked m
$$;
