-- penstock.group_settings_problem(config)
--
-- Says what is wrong with a group's configuration. A group can override those settings of its queue that are about
-- consuming.
--
-- Parameters: config - the settings somebody wants, as a JSON object.
-- Returns: the first problem as a sentence that says what to do, or null.
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
