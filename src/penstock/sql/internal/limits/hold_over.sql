-- penstock.hold_over(target_group)
--
-- Says whether the hold of a group is over, if it had one, and its flow is not paused. A hold that was begun after now, by a clock that has gone back
-- since, is over: for how long it would last nobody can say.
--
-- Parameters: target_group.
-- Returns: whether something may be delivered, and whether it is a probe.
-- Calls: policy_clock. Tables: consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.hold_over(target_group integer, OUT over boolean, OUT probing boolean)
LANGUAGE sql
AS $$
    SELECT
        NOT g.flow_paused AND (
            g.held_until IS NULL OR c.now_here >= g.held_until
            OR c.now_here < g.held_at - interval '2 seconds' AND g.held_until < 'infinity'
        ),
        g.held_until IS NOT NULL AND g.probing
    FROM penstock.consumer_groups g
    CROSS JOIN (SELECT penstock.policy_clock() AS now_here) c
    WHERE g.group_id = target_group
$$;
