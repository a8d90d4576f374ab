-- penstock.sweep_apart(max_rows, since)
--
-- Fires the timers that are due one after the other, each in a subtransaction, so that one that fails does not hold
-- up others. The sweep calls it after it has failed as a whole, and holds the sweep's lock. After two seconds it
-- fires only one more of each kind.
--
-- Parameters: those of sweep; max_rows - of each kind of timer.
-- Returns: the number fired, and the number that failed.
-- Calls: is_put_off, try_timer. Tables: journal, claims, late_wakeups, consumer_groups, scheduled, limited_keys
-- (read).
CREATE OR REPLACE FUNCTION penstock.sweep_apart(
    max_rows integer, since timestamptz, OUT woken integer, OUT failed integer
)
LANGUAGE plpgsql
AS $$
DECLARE
    now_here timestamptz := clock_timestamp();
    timer    record;
    served   boolean;
    until    timestamptz := now_here + interval '2 seconds';
    last     text;
BEGIN
    woken := 0;
    failed := 0;
    FOR timer IN
        SELECT * FROM (
            SELECT 'journal' AS kind, j.group_id, j.partition_id, j.version AS place
            FROM penstock.journal j
            WHERE j.due_at > since AND j.due_at <= now_here AND NOT EXISTS (
                SELECT 1 FROM penstock.journal n
                WHERE n.group_id = j.group_id AND n.partition_id = j.partition_id AND n.version > j.version
            ) AND NOT penstock.is_put_off('journal', j.group_id, j.partition_id, j.version)
            ORDER BY j.due_at
            LIMIT max_rows
        ) j
        UNION ALL
        SELECT * FROM (
            SELECT 'claim', c.group_id, c.partition_id, c.lo
            FROM penstock.claims c
            WHERE c.due_at > since AND c.due_at <= now_here
              AND NOT penstock.is_put_off('claim', c.group_id, c.partition_id, c.lo)
            ORDER BY c.due_at
            LIMIT max_rows
        ) c
        UNION ALL
        SELECT * FROM (
            SELECT 'late_wakeup', 0, w.partition_id, w.base_offset
            FROM penstock.late_wakeups w
            WHERE NOT penstock.is_put_off('late_wakeup', 0, w.partition_id, w.base_offset)
            ORDER BY w.partition_id, w.base_offset
            LIMIT max_rows
        ) w
        UNION ALL
        SELECT DISTINCT 'limits', k.group_id, 0::bigint, 0::bigint FROM penstock.limited_keys k
        WHERE k.look_at <= now_here AND NOT penstock.is_put_off('limits', k.group_id, 0, 0)
        UNION ALL
        SELECT 'enrolment', g.group_id, 0, 0 FROM penstock.consumer_groups g
        WHERE g.enrolled_to IS NOT NULL AND NOT penstock.is_put_off('enrolment', g.group_id, 0, 0)
        UNION ALL
        SELECT * FROM (
            SELECT 'scheduled', 0, s.partition_id, s.scheduled_id
            FROM penstock.scheduled s
            WHERE s.due_at > since AND s.due_at <= now_here
              AND NOT penstock.is_put_off('scheduled', 0, s.partition_id, s.scheduled_id)
            ORDER BY s.due_at, s.scheduled_id
            LIMIT max_rows
        ) s
    LOOP
        CONTINUE WHEN timer.kind = last AND clock_timestamp() > until;
        last := timer.kind;
        served := penstock.try_timer(timer.kind, timer.group_id, timer.partition_id, timer.place);
        woken := woken + coalesce(served, false)::integer;
        failed := failed + (served IS NULL)::integer;
    END LOOP;
END
$$;
