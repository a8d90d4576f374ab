-- penstock.refuse_first_use(queue_names, group_name)
--
-- Raises an error if queues or a group do not exist and the database does not create them on first use.
--
-- Parameters: queue_names - queues that are about to be used; group_name - a group of theirs, or null.
-- Returns: nothing; raises undefined_object.
-- Calls: nothing. Tables: database_settings, queues, consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.refuse_first_use(queue_names text[], group_name text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    missing text;
BEGIN
    IF coalesce((SELECT d.create_on_first_use FROM penstock.database_settings d), true) THEN
        RETURN;
    END IF;
    SELECT w.name INTO missing FROM unnest(queue_names) w (name)
    WHERE NOT EXISTS (SELECT 1 FROM penstock.queues q WHERE q.name = w.name)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'there is no queue "%", and this database creates none on first use', missing
            USING ERRCODE = 'undefined_object',
                  HINT = 'Create it with "penstock create" or create_queue; "penstock queues" lists those there are.';
    END IF;
    SELECT q.name INTO missing FROM penstock.queues q
    WHERE group_name IS NOT NULL AND q.name = ANY (queue_names) AND NOT EXISTS (
        SELECT 1 FROM penstock.consumer_groups g WHERE g.queue_id = q.queue_id AND g.name = group_name
    )
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'queue "%" has no group "%", and this database creates none on first use', missing, group_name
            USING ERRCODE = 'undefined_object',
                  HINT = 'Create it with "penstock group create" or create_group; "penstock groups" lists those there are.';
    END IF;
END
$$;
