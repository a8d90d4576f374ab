-- penstock.pause_actions(of_flow)
--
-- Lets the groups of a flow's actions be delivered to, or not, as the flow says. The caller has locked the flow.
--
-- Parameters: of_flow - its name.
-- Returns: nothing.
-- Calls: refresh_gate, send_hint. Tables: flows, actions, queues (read), consumer_groups (update).
CREATE OR REPLACE FUNCTION penstock.pause_actions(of_flow text)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    changed integer;
BEGIN
    FOR changed IN
        UPDATE penstock.consumer_groups g
        SET flow_paused = w.paused
        FROM (
            SELECT g.group_id, f.paused
            FROM penstock.flows f
            JOIN penstock.actions a ON a.flow_name = f.name
            JOIN penstock.queues q ON q.name = a.queue
            JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id AND g.name = a.flow_name || '.' || a.action_name
            WHERE f.name = of_flow AND g.flow_paused <> f.paused
            ORDER BY g.group_id
            FOR NO KEY UPDATE OF g
        ) w
        WHERE g.group_id = w.group_id
        RETURNING g.group_id
    LOOP
        PERFORM penstock.refresh_gate(changed);
        PERFORM penstock.send_hint(changed);
    END LOOP;
END
$$;
