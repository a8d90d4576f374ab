-- penstock.is_put_off(kind, target_group, target, place)
--
-- Returns whether a timer has failed and waits for its next try.
--
-- Parameters: those of serve_timer.
-- Returns: whether it is in failing_timers.
-- Calls: nothing. Tables: failing_timers (read).
CREATE OR REPLACE FUNCTION penstock.is_put_off(kind text, target_group integer, target bigint, place bigint)
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT 1 FROM penstock.failing_timers f
        WHERE f.kind = is_put_off.kind AND f.group_id = target_group AND f.partition_id = target
          AND f.place = is_put_off.place
    )
$$;
