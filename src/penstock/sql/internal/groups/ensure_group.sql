-- penstock.ensure_group(queue_name, group_name)
--
-- Looks up a group, or creates it on first use; two callers at the same time get the same group.
--
-- Parameters: the names.
-- Returns: the group's id.
-- Calls: refuse_first_use, create_group, find_group. Tables: queues, consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.ensure_group(queue_name text, group_name text)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    found integer := (
        SELECT g.group_id FROM penstock.consumer_groups g
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE q.name = queue_name AND g.name = group_name
    );
BEGIN
    IF found IS NULL THEN
        PERFORM penstock.refuse_first_use(ARRAY[queue_name], group_name);
    END IF;
    RETURN coalesce(found, penstock.create_group(queue_name, group_name));
EXCEPTION WHEN duplicate_object THEN
    RETURN penstock.find_group(queue_name, group_name);
END
$$;
