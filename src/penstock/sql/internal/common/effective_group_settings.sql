-- penstock.effective_group_settings(queue_settings, config)
--
-- Fills in what a group's configuration leaves out: the queue's settings, and the defaults of those that only groups have.
-- Functions that need no defaults of the latter take `queues.settings || config`.
--
-- Parameters: queue_settings - all settings of the queue; config - the settings of the group that were set.
-- Returns: all settings of the group as one JSON object.
-- Calls: settings. Tables: none.
CREATE OR REPLACE FUNCTION penstock.effective_group_settings(queue_settings jsonb, config jsonb)
RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT jsonb_object_agg(s.name, s.default_value) || queue_settings || config FROM penstock.settings() s
    WHERE s.scope = 'group'
$$;
