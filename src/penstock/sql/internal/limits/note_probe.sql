-- penstock.note_probe(target_group)
--
-- Takes note that the probe of a held group was delivered: it is held for as long again. The caller has locked its row.
--
-- Parameters: target_group.
-- Returns: nothing.
-- Calls: policy_clock. Tables: consumer_groups (update).
CREATE OR REPLACE FUNCTION penstock.note_probe(target_group integer)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE penstock.consumer_groups g
    SET held_at = c.now_here, held_until = c.now_here + (g.held_until - g.held_at)
    FROM (SELECT penstock.policy_clock() AS now_here) c
    WHERE g.group_id = target_group
$$;
