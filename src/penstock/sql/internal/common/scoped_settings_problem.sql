-- penstock.scoped_settings_problem(config, scope)
--
-- Checks the configuration of a queue or a group.
--
-- Parameters: config - the settings, as a JSON object; scope - 'queue' or 'group': whose configuration it is.
-- Returns: the first problem, as an error text, or null.
-- Calls: settings. Tables: none.
CREATE OR REPLACE FUNCTION penstock.scoped_settings_problem(config jsonb, scope text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    given   record;
    setting record;
    number  numeric;
    rate    text := CASE scope WHEN 'queue' THEN 'push_rate' ELSE 'rate' END;
BEGIN
    IF config IS NULL OR jsonb_typeof(config) <> 'object' THEN
        RETURN 'the configuration must be a JSON object';
    END IF;
    FOR given IN SELECT e.key, e.value FROM jsonb_each(config) e ORDER BY e.key LOOP
        SELECT s.* INTO setting FROM penstock.settings() s WHERE s.name = given.key;
        IF scope = 'queue' AND setting.scope = 'group' THEN
            RETURN format('setting %s is one of groups: set it with configure_group', given.key);
        END IF;
        IF setting.scope IS NULL OR setting.scope NOT IN ('both', scoped_settings_problem.scope) THEN
            RETURN format(
                'unknown setting %s%s; the known ones are %s',
                to_json(given.key),
                CASE scope WHEN 'group' THEN ' of a group' ELSE '' END,
                (
                    SELECT string_agg(s.name, ', ') FROM penstock.settings() s
                    WHERE s.scope IN ('both', scoped_settings_problem.scope)
                )
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
        IF setting.kind = 'key source' THEN
            IF jsonb_typeof(given.value) <> 'string'
               OR given.value #>> '{}' !~ '^(partition|key|group|field:[^.]+([.][^.]+)*)$'
               OR octet_length(given.value #>> '{}') > 255
            THEN
                RETURN format(
                    'setting %s is %s but must be partition, key, group, or field: and the name of a field of JSON values, '
                    'such as field:customer.id', given.key, left(given.value::text, 300)
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
    -- Times have microseconds: a faster rate could not be told from no limit.
    IF (config ->> (rate || '_limit'))::numeric / coalesce((config ->> (rate || '_period'))::numeric, 1) > 1000000 THEN
        RETURN format(
            'setting %s_limit is %s for %s seconds but must be at most 1000000 a second',
            rate, config ->> (rate || '_limit'), coalesce(config ->> (rate || '_period'), '1')
        );
    END IF;
    IF (config ->> (rate || '_burst'))::numeric * coalesce((config ->> (rate || '_period'))::numeric, 1)
        / (config ->> (rate || '_limit'))::numeric > 3155760000
    THEN
        RETURN format('setting %s_burst is %s, which the rate would allow again after more than a hundred years',
                      rate, config ->> (rate || '_burst'));
    END IF;
    RETURN NULL;
END
$$;
