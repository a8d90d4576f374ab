-- penstock.find_group(queue_name, group_name)
--
-- Looks up a group that must exist.
--
-- Parameters: the names.
-- Returns: the group's id; raises undefined_object and says which of the two does not exist.
-- Calls: find_queue. Tables: consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.find_group(queue_name text, group_name text)
RETURNS integer
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
DECLARE
    queue integer := penstock.find_queue(queue_name);
    found integer := (
        SELECT g.group_id FROM penstock.consumer_groups g WHERE g.queue_id = queue AND g.name = group_name
    );
BEGIN
    IF found IS NULL THEN
        RAISE EXCEPTION 'queue "%" has no group "%"', queue_name, group_name
            USING ERRCODE = 'undefined_object',
                  HINT = 'Pop with it or create it first; "penstock groups" lists those there are.';
    END IF;
    RETURN found;
END
$$;
