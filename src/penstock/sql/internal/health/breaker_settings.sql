-- penstock.breaker_settings(target_group)
--
-- Returns the settings of a group's circuit breaker.
--
-- Parameters: target_group.
-- Returns: one row; none if there is no such group.
-- Calls: nothing. Tables: consumer_groups, queues (read).
CREATE OR REPLACE FUNCTION penstock.breaker_settings(target_group integer)
RETURNS TABLE (errors bigint, rate float8, window_seconds float8, pause float8, pause_max float8)
LANGUAGE sql STABLE
AS $$
    SELECT
        coalesce((s.settings ->> 'breaker_errors')::bigint, 50), coalesce((s.settings ->> 'breaker_rate')::float8, 0),
        coalesce((s.settings ->> 'breaker_window')::float8, 60), coalesce((s.settings ->> 'breaker_pause')::float8, 30),
        coalesce((s.settings ->> 'breaker_pause_max')::float8, 600)
    FROM (
        SELECT q.settings || g.config AS settings
        FROM penstock.consumer_groups g
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE g.group_id = target_group
    ) s
$$;
