-- penstock.gate_is_open(target_group)
--
-- Returns whether a pop of a gated group could be given anything, as far as pauses, holds and limits of the whole
-- group go. It writes nothing.
--
-- Parameters: target_group.
-- Returns: whether.
-- Calls: hold_over, group_allows. Tables: consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.gate_is_open(target_group integer)
RETURNS boolean
LANGUAGE sql
AS $$
    SELECT
        NOT g.config @> '{"paused": true}' AND h.over
        AND coalesce(a.tokens, 1) > 0 AND coalesce(a.free, 1) > 0
    FROM penstock.consumer_groups g
    CROSS JOIN LATERAL penstock.hold_over(g.group_id) h
    CROSS JOIN LATERAL penstock.group_allows(g.group_id, g.config) a
    WHERE g.group_id = target_group
$$;
