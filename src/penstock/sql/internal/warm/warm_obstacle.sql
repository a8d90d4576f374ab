-- penstock.warm_obstacle(target_group)
--
-- Says why a group cannot be served from Valkey at present: what its window there could not express.
--
-- Parameters: target_group.
-- Returns: the reason, null where there is none.
-- Calls: nothing. Tables: consumer_groups, queues (read).
CREATE OR REPLACE FUNCTION penstock.warm_obstacle(target_group integer)
RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN NOT coalesce(g.config @> '{"warm": true}', false) THEN 'warm is off'
        WHEN g.mode = 'external' THEN 'the group is external'
        WHEN g.config @> '{"paused": true}' THEN 'the group is paused'
        WHEN g.held_until IS NOT NULL THEN 'a circuit breaker holds the group'
        WHEN g.config @> '{"conflate": true}' THEN 'the group conflates'
        WHEN g.config ?| ARRAY['rate_limit', 'concurrency_limit'] THEN 'the group has limits'
        WHEN g.gated THEN 'messages of the group were cancelled'
        WHEN cardinality(q.priorities) > 1 THEN 'the partitions of the queue have priorities'
    END
    FROM penstock.consumer_groups g
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    WHERE g.group_id = target_group
$$;
