-- penstock.settings_problem(config)
--
-- Checks the configuration of a queue.
--
-- Parameters: config - the settings, as a JSON object.
-- Returns: the first problem, as an error text, or null.
-- Calls: settings. Tables: none.
CREATE OR REPLACE FUNCTION penstock.settings_problem(config jsonb)
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    given   record;
    setting record;
    number  numeric;
BEGIN
    IF config IS NULL OR jsonb_typeof(config) <> 'object' THEN
        RETURN 'the configuration must be a JSON object';
    END IF;
    FOR given IN SELECT e.key, e.value FROM jsonb_each(config) e ORDER BY e.key LOOP
        SELECT s.* INTO setting FROM penstock.settings() s WHERE s.name = given.key;
        IF NOT FOUND THEN
            RETURN format(
                'unknown setting %s; the known ones are %s',
                to_json(given.key),
                (SELECT string_agg(s.name, ', ') FROM penstock.settings() s)
            );
        END IF;
        CONTINUE WHEN given.value = 'null' AND setting.kind LIKE '%or null';
        IF setting.kind = 'choice' THEN
            IF jsonb_typeof(given.value) <> 'string' OR given.value #>> '{}' <> ALL (setting.choices) THEN
                RETURN format(
                    'setting %s is %s but must be one of %s',
                    given.key, given.value, array_to_string(setting.choices, ', ')
                );
            END IF;
            CONTINUE;
        END IF;
        IF setting.kind = 'boolean' THEN
            IF jsonb_typeof(given.value) <> 'boolean' THEN
                RETURN format('setting %s is %s but must be true or false', given.key, given.value);
            END IF;
            CONTINUE;
        END IF;
        IF jsonb_typeof(given.value) <> 'number' THEN
            RETURN format('setting %s is %s but must be a number (%s)', given.key, given.value, setting.kind);
        END IF;
        number := (given.value #>> '{}')::numeric;
        IF number NOT BETWEEN setting.minimum AND setting.maximum THEN
            RETURN format(
                'setting %s is %s but must be from %s to %s',
                given.key, number, setting.minimum, setting.maximum
            );
        END IF;
        IF setting.kind LIKE 'count%' AND number <> trunc(number) THEN
            RETURN format('setting %s is %s but must be a whole number', given.key, number);
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
