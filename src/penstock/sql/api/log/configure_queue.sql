-- penstock.configure_queue(queue_name, changes, description)
--
-- Changes a queue's settings, creating the queue on first use. Takes effect with the next push, pop or sweep, and those who
-- wait for its messages are told to look.
--
-- Parameters: changes - settings to set; JSON null resets one to its default; description - null keeps it.
-- Returns: all settings of the queue, after the change.
-- Calls: refuse_first_use, checked_config, require_names, end_waits, hint_queue. Tables: queues (update), consumer_groups (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.configure_queue(
    queue_name text, changes jsonb DEFAULT '{}', description text DEFAULT NULL
)
RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    effective jsonb;
BEGIN
    PERFORM penstock.require_names(queue_name);
    PERFORM penstock.refuse_first_use(ARRAY[queue_name]);
    INSERT INTO penstock.queues (name) VALUES (queue_name) ON CONFLICT DO NOTHING;
    UPDATE penstock.queues q
    SET config = penstock.checked_config(q.config, changes),
        description = coalesce(configure_queue.description, q.description),
        limited_at = CASE WHEN changes ? 'max_attempts' THEN clock_timestamp() ELSE q.limited_at END
    WHERE q.name = queue_name
    RETURNING q.settings INTO effective;
    IF changes ?| ARRAY['delay', 'quiet_period', 'window_buffer'] THEN
        PERFORM penstock.end_waits(ARRAY(
            SELECT g.group_id FROM penstock.consumer_groups g
            WHERE g.queue_id = (SELECT q.queue_id FROM penstock.queues q WHERE q.name = queue_name)
        ));
    END IF;
    PERFORM penstock.hint_queue(queue_name);
    RETURN effective;
END
$$;
