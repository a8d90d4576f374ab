-- penstock.ensure_reader(queue_name, group_name)
--
-- Creates an external group, or finds it: a group whose reader keeps its own positions and reports them with
-- advance_reader.
--
-- Parameters: the names.
-- Returns: the group's id; raises object_not_in_prerequisite_state if consumers read with this group.
-- Calls: find_queue, create_group. Tables: consumer_groups (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.ensure_reader(queue_name text, group_name text)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    queue integer := penstock.find_queue(queue_name);
    found record;
BEGIN
    BEGIN
        IF NOT EXISTS (
            SELECT 1 FROM penstock.consumer_groups g WHERE g.queue_id = queue AND g.name = group_name
        ) THEN
            PERFORM penstock.create_group(queue_name, group_name, '{}', 'all', NULL, 'external');
        END IF;
    EXCEPTION WHEN duplicate_object THEN
        NULL; -- somebody was first
    END;
    SELECT g.group_id, g.mode INTO found
    FROM penstock.consumer_groups g WHERE g.queue_id = queue AND g.name = group_name;
    IF found.mode <> 'external' THEN
        RAISE EXCEPTION 'group "%" of queue "%" is % and read by consumers; a Spark query cannot use it too',
            group_name, queue_name, found.mode
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Choose another groupId.';
    END IF;
    RETURN found.group_id;
END
$$;
