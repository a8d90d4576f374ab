-- penstock.retry_timers(max_rows)
--
-- Tries postponed timers again when they are due, each in a subtransaction, and deletes from failing_timers those
-- that succeed or no longer exist. A timer also no longer exists if another claim begins at the same place. After two
-- seconds no more are tried.
--
-- Parameters: max_rows - the largest number to try.
-- Returns: the number fired.
-- Calls: try_timer. Tables: failing_timers (delete), journal, claims, late_wakeups, consumer_groups, scheduled,
-- limited_keys (read).
CREATE OR REPLACE FUNCTION penstock.retry_timers(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    timer  record;
    served integer := 0;
    until  timestamptz := clock_timestamp() + interval '2 seconds';
BEGIN
    DELETE FROM penstock.failing_timers f
    WHERE CASE f.kind
        WHEN 'journal' THEN (
            SELECT max(j.version) FROM penstock.journal j WHERE j.group_id = f.group_id AND j.partition_id = f.partition_id
        ) IS DISTINCT FROM f.place
        WHEN 'claim' THEN NOT EXISTS (
            SELECT 1 FROM penstock.claims c
            WHERE c.group_id = f.group_id AND c.partition_id = f.partition_id AND c.lo = f.place
              AND c.claimed_at <= f.since
        )
        WHEN 'late_wakeup' THEN NOT EXISTS (
            SELECT 1 FROM penstock.late_wakeups w WHERE w.partition_id = f.partition_id AND w.base_offset = f.place
        )
        WHEN 'enrolment' THEN NOT EXISTS (
            SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = f.group_id AND g.enrolled_to IS NOT NULL
        )
        WHEN 'limits' THEN NOT EXISTS (
            SELECT 1 FROM penstock.limited_keys k WHERE k.group_id = f.group_id AND k.look_at IS NOT NULL
        )
        WHEN 'scheduled' THEN NOT EXISTS (SELECT 1 FROM penstock.scheduled s WHERE s.scheduled_id = f.place)
        ELSE false
    END;
    FOR timer IN
        SELECT f.kind, f.group_id, f.partition_id, f.place FROM penstock.failing_timers f
        WHERE f.retry_at <= clock_timestamp() AND f.kind NOT IN ('sweep', 'maintenance')
        ORDER BY f.retry_at
        LIMIT max_rows
    LOOP
        IF penstock.try_timer(timer.kind, timer.group_id, timer.partition_id, timer.place) THEN
            DELETE FROM penstock.failing_timers f
            WHERE f.kind = timer.kind AND f.group_id = timer.group_id AND f.partition_id = timer.partition_id
              AND f.place = timer.place;
            served := served + 1;
        END IF;
        EXIT WHEN clock_timestamp() > until;
    END LOOP;
    RETURN served;
END
$$;
