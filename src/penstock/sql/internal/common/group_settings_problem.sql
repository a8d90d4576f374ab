-- penstock.group_settings_problem(config)
--
-- Checks the configuration of a group. A group can override those settings of its queue that concern consuming, and has
-- some of its own.
--
-- Parameters: config - the settings, as a JSON object.
-- Returns: the first problem, as an error text, or null.
-- Calls: scoped_settings_problem. Tables: none.
CREATE OR REPLACE FUNCTION penstock.group_settings_problem(config jsonb)
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN penstock.scoped_settings_problem(config, 'group');
END
$$;
