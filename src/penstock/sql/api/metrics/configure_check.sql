-- penstock.configure_check(check_name, changes)
--
-- Changes the settings of a check: enabled, threshold, duration (seconds) or advice.
--
-- Parameters: changes - a JSON object; null resets one to its default.
-- Returns: nothing; raises undefined_object if there is no such check.
-- Calls: checks. Tables: check_settings (insert, update, delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.configure_check(check_name text, changes jsonb)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    given record;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM penstock.checks() c WHERE c.name = check_name) THEN
        RAISE EXCEPTION 'there is no check "%"', check_name
            USING ERRCODE = 'undefined_object',
                  HINT = format('The known ones are %s.', (SELECT string_agg(c.name, ', ') FROM penstock.checks() c));
    END IF;
    IF (jsonb_typeof(changes) = 'object') IS NOT TRUE THEN
        RAISE EXCEPTION 'the settings of a check must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR given IN SELECT e.key, e.value, jsonb_typeof(e.value) AS kind FROM jsonb_each(changes) e LOOP
        CONTINUE WHEN given.kind = 'null' AND given.key IN ('enabled', 'threshold', 'duration', 'advice');
        IF NOT (
            given.key = 'enabled' AND given.kind = 'boolean' OR given.key = 'advice' AND given.kind = 'string'
            OR given.key IN ('threshold', 'duration') AND given.kind = 'number' AND (given.value #>> '{}')::numeric >= 0
        ) THEN
            RAISE EXCEPTION 'setting % of a check is %: enabled is true or false, threshold and duration are numbers from 0 on, advice is a text',
                to_json(given.key), given.value
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
    INSERT INTO penstock.check_settings AS s (name, config) VALUES (check_name, jsonb_strip_nulls(changes))
    ON CONFLICT (name) DO UPDATE SET config = jsonb_strip_nulls(s.config || changes);
    DELETE FROM penstock.check_settings s WHERE s.config = '{}';
END
$$;
