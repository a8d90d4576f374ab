-- penstock.checked_config(old, changes, scope)
--
-- Applies changes to a configuration: a value sets, a JSON null resets to the default, and the alias window_buffer
-- means quiet_period.
--
-- Parameters: old - the configuration so far; changes - the changes requested; scope - 'queue' or
-- 'group': whose configuration it is.
-- Returns: the new configuration; raises invalid_parameter_value if it is not valid.
-- Calls: scoped_settings_problem, settings. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.checked_config(old jsonb, changes jsonb, scope text DEFAULT 'queue')
RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    wanted  jsonb := changes;
    problem text;
BEGIN
    IF jsonb_typeof(wanted) = 'object' AND wanted ? 'window_buffer' THEN
        IF wanted ? 'quiet_period' THEN
            RAISE EXCEPTION 'window_buffer is another name of quiet_period: give only one of them'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        wanted := wanted - 'window_buffer' || jsonb_build_object('quiet_period', wanted -> 'window_buffer');
    END IF;
    IF wanted IS NULL OR jsonb_typeof(wanted) <> 'object' THEN
        problem := penstock.scoped_settings_problem(wanted, scope);
    ELSE
        -- Reset to default: unknown names are still refused, so they are looked at with a value in place of null.
        problem := coalesce(
            penstock.scoped_settings_problem(jsonb_strip_nulls(wanted), scope),
            penstock.scoped_settings_problem(coalesce((
                SELECT jsonb_object_agg(e.key, coalesce(
                    (SELECT s.default_value FROM penstock.settings() s WHERE s.name = e.key), '0'
                ))
                FROM jsonb_each(wanted) e WHERE e.value = 'null'
            ), '{}'), scope),
            -- Some settings must fit others.
            penstock.scoped_settings_problem(jsonb_strip_nulls(old || wanted), scope)
        );
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN jsonb_strip_nulls(old || wanted);
END
$$;
