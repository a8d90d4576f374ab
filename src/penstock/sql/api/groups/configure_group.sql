-- penstock.configure_group(queue_name, group_name, changes)
--
-- Changes a group's settings, creating the group on first use. Takes effect with the next pop or sweep, and those who wait
-- for its messages are told to look.
--
-- Parameters: changes - settings to set; JSON null resets one to the queue's.
-- Returns: all settings of the group, after the change.
-- Calls: ensure_group, checked_config, end_waits, end_limit_waits, refresh_gate, send_hint, effective_group_settings.
-- Tables: consumer_groups (update), queues (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.configure_group(queue_name text, group_name text, changes jsonb)
RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target    integer := penstock.ensure_group(queue_name, group_name);
    wanted    jsonb;
    effective jsonb;
BEGIN
    SELECT penstock.checked_config(g.config, changes, 'group') INTO wanted
    FROM penstock.consumer_groups g WHERE g.group_id = target FOR UPDATE;
    UPDATE penstock.consumer_groups g
    SET config = wanted, limited_at = CASE WHEN changes ? 'max_attempts' THEN clock_timestamp() ELSE g.limited_at END
    WHERE g.group_id = target;
    IF changes ?| ARRAY['delay', 'quiet_period', 'window_buffer'] THEN
        PERFORM penstock.end_waits(ARRAY[target]);
    END IF;
    PERFORM penstock.refresh_gate(target);
    PERFORM penstock.end_limit_waits(target);
    PERFORM penstock.send_hint(target);
    SELECT penstock.effective_group_settings(q.settings, wanted) INTO effective
    FROM penstock.consumer_groups g JOIN penstock.queues q ON q.queue_id = g.queue_id
    WHERE g.group_id = target;
    RETURN effective;
END
$$;
