-- penstock.group_settings_problem(config)
--
-- Checks the configuration of a group. A group can override those settings of its queue that concern consuming.
--
-- Parameters: config - the settings, as a JSON object.
-- Returns: the first problem, as an error text, or null.
-- Calls: settings_problem. Tables: none.
CREATE OR REPLACE FUNCTION penstock.group_settings_problem(config jsonb)
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    known   text[] := ARRAY['lease_time', 'max_attempts', 'backoff_initial', 'backoff_factor', 'backoff_max',
                            'delay', 'quiet_period', 'durable_acks'];
    unknown text;
BEGIN
    IF config IS NULL OR jsonb_typeof(config) <> 'object' THEN
        RETURN 'the configuration must be a JSON object';
    END IF;
    SELECT k INTO unknown FROM jsonb_object_keys(config) k WHERE k <> ALL (known) ORDER BY k LIMIT 1;
    IF FOUND THEN
        RETURN format('unknown setting %s of a group; the known ones are %s',
                      to_json(unknown), array_to_string(known, ', '));
    END IF;
    RETURN penstock.settings_problem(config);
END
$$;
