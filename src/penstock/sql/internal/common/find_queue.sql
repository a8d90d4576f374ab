-- penstock.find_queue(queue_name)
--
-- Looks up a queue that must exist.
--
-- Parameters: the name.
-- Returns: the queue's id; raises undefined_object.
-- Calls: nothing. Tables: queues (read).
CREATE OR REPLACE FUNCTION penstock.find_queue(queue_name text)
RETURNS integer
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
DECLARE
    found integer := (SELECT q.queue_id FROM penstock.queues q WHERE q.name = queue_name);
BEGIN
    IF found IS NULL THEN
        RAISE EXCEPTION 'there is no queue "%"', queue_name
            USING ERRCODE = 'undefined_object',
                  HINT = 'Push to it or create it first; "penstock queues" lists those there are.';
    END IF;
    RETURN found;
END
$$;
