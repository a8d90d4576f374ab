-- penstock.effective_settings(config)
--
-- Fills in the default of every setting that a queue's configuration leaves out.
--
-- Parameters: config - the settings that were set.
-- Returns: all settings as one JSON object.
-- Calls: settings. Tables: none.
CREATE OR REPLACE FUNCTION penstock.effective_settings(config jsonb)
RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT jsonb_object_agg(s.name, s.default_value) || config FROM penstock.settings() s
    WHERE s.scope <> 'group'
$$;
