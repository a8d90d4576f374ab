-- penstock.refresh_gate(target_group)
--
-- Notes whether anything beyond an ordinary pop applies to a group: it is paused or held, conflates, has
-- limits, or messages of it were cancelled. Whoever
-- changes one of these calls it, in the same transaction. The ordinary way of a pop reads that note and nothing else.
--
-- Parameters: target_group.
-- Returns: nothing.
-- Calls: nothing. Tables: consumer_groups (update), cancellations (read).
CREATE OR REPLACE FUNCTION penstock.refresh_gate(target_group integer)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE penstock.consumer_groups g
    SET gated = w.gated
    FROM (
        SELECT
            g.group_id,
            g.held_until IS NOT NULL OR g.config ?| ARRAY['rate_limit', 'concurrency_limit']
            OR g.flow_paused OR g.config @> '{"paused": true}' OR g.config @> '{"conflate": true}'
            OR EXISTS (SELECT 1 FROM penstock.cancellations c WHERE c.group_id = g.group_id AND NOT c.passed) AS gated
        FROM penstock.consumer_groups g
        WHERE g.group_id = target_group
        FOR NO KEY UPDATE
    ) w
    WHERE g.group_id = w.group_id AND g.gated <> w.gated
$$;
