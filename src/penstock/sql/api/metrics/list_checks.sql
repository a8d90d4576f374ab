-- penstock.list_checks()
--
-- Lists the checks of `penstock status` with the settings that hold.
--
-- Parameters: none.
-- Returns: a row per check: whether it is on, its threshold and duration (seconds), its meaning, its advice, and
-- whether anything differs from the default.
-- Calls: checks. Tables: check_settings (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_checks()
RETURNS TABLE (
    name text, enabled boolean, threshold float8, duration float8, meaning text, advice text, configured boolean
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        c.name, coalesce((s.config ->> 'enabled')::boolean, true),
        coalesce((s.config ->> 'threshold')::float8, c.threshold),
        coalesce((s.config ->> 'duration')::float8, c.duration), c.meaning, coalesce(s.config ->> 'advice', c.advice),
        s.name IS NOT NULL
    FROM penstock.checks() WITH ORDINALITY c (name, threshold, duration, meaning, advice, nth)
    LEFT JOIN penstock.check_settings s ON s.name = c.name
    ORDER BY c.nth
$$;
