-- penstock.pause_queue(queue_name, paused)
--
-- Refuses pushes to a queue, or lets them go on. Delivery goes on. It sets the queue's setting `push_paused`. What was
-- pushed with a delay comes when it is due.
--
-- Parameters: queue_name; paused - false to resume.
-- Returns: whether that changed anything; raises undefined_object when there is no such queue.
-- Calls: find_queue. Tables: queues (update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.pause_queue(queue_name text, paused boolean DEFAULT true)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target integer := penstock.find_queue(queue_name);
BEGIN
    IF paused IS NULL THEN
        RAISE EXCEPTION 'paused must be true or false' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE penstock.queues q
    SET config = CASE WHEN pause_queue.paused THEN q.config || '{"push_paused": true}' ELSE q.config - 'push_paused' END
    WHERE q.queue_id = target AND q.config @> '{"push_paused": true}' <> pause_queue.paused;
    RETURN FOUND;
END
$$;
