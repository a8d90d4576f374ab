-- penstock.hint_queue(queue_name)
--
-- Tells the clients of all processes that wait for messages of a queue to look now: something has changed that no push says.
-- Hints of pushes are sent by clients, after their commit; these are rare, and sent with the commit itself.
--
-- Parameters: queue_name.
-- Returns: nothing.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.hint_queue(queue_name text)
RETURNS void
LANGUAGE sql
AS $$
    -- What src/penstock/postgres/hints.py sends and reads.
    SELECT pg_notify(
        'penstock_pushed', json_build_object('sender', '', 'queues', json_build_array(queue_name))::text
    )
$$;
