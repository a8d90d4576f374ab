-- penstock.send_hint(target_group)
--
-- Tells the clients of all processes that wait for messages of a group's queue to look now.
--
-- Parameters: target_group.
-- Returns: nothing.
-- Calls: hint_queue. Tables: consumer_groups, queues (read).
CREATE OR REPLACE FUNCTION penstock.send_hint(target_group integer)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM penstock.hint_queue(q.name)
    FROM penstock.consumer_groups g
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    WHERE g.group_id = target_group;
END
$$;
