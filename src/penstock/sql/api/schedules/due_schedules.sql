-- penstock.due_schedules(max_rows, passing)
--
-- Finds schedules with a slot that is due, the most overdue first and those that failed last time after all others, and
-- when the next slot of the rest is. Reads only.
--
-- Parameters: max_rows - the largest number of names; passing - names to leave out, such as those that failed just now.
-- Returns: one row: the time by which schedules are judged, the names, and the next slot that is not due yet, null if
-- there is none.
-- Calls: policy_clock. Tables: schedules (read).
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.due_schedules(max_rows integer DEFAULT 100, passing text[] DEFAULT '{}')
RETURNS TABLE (now_here timestamptz, names text[], next_due timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    now_here := penstock.policy_clock();
    names := ARRAY(
        SELECT s.name FROM penstock.schedules s
        WHERE NOT s.paused AND s.next_at <= now_here AND s.name <> ALL (passing)
        ORDER BY s.error IS NOT NULL, s.next_at, s.name
        LIMIT max_rows
    );
    next_due := (
        SELECT s.next_at FROM penstock.schedules s
        WHERE NOT s.paused AND s.next_at > now_here
        ORDER BY s.next_at
        LIMIT 1
    );
    RETURN NEXT;
END
$$;
