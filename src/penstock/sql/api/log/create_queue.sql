-- penstock.create_queue(queue_name, config, description)
--
-- Creates a queue that must not exist yet. A push creates queues too, with default settings.
--
-- Parameters: config - settings as a JSON object (see penstock.settings()); description - free text.
-- Returns: nothing; raises duplicate_object when the queue exists.
-- Calls: require_names, checked_config. Tables: queues (insert).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.create_queue(
    queue_name text, config jsonb DEFAULT '{}', description text DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.require_names(queue_name);
    INSERT INTO penstock.queues (name, config, description)
    VALUES (queue_name, penstock.checked_config('{}', create_queue.config), create_queue.description)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'queue "%" exists already', queue_name
            USING ERRCODE = 'duplicate_object', HINT = 'Change its settings with configure.';
    END IF;
END
$$;
