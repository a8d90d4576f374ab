-- penstock.push_slots(schedule_name, slots)
--
-- Pushes the message of a schedule once for each slot, in order, to one partition. Its headers say which schedule and
-- which slot it is. The caller has locked the schedule.
--
-- Parameters: the name; slots - at least one time.
-- Returns: one row: where the first message went, how many there are, their time, and the id of the last one.
-- Calls: push, message_id. Tables: schedules (read).
CREATE OR REPLACE FUNCTION penstock.push_slots(
    schedule_name text, slots timestamptz[],
    OUT pushed_to text, OUT partition_id bigint, OUT first_offset bigint, OUT message_count integer,
    OUT created_at timestamptz, OUT last_id uuid
)
LANGUAGE sql
AS $$
    SELECT
        (array_agg(p.pushed_to ORDER BY p.first_offset))[1], (array_agg(p.partition_id ORDER BY p.first_offset))[1],
        min(p.first_offset), sum(p.message_count)::integer, max(p.created_at),
        (array_agg(
            penstock.message_id(p.partition_id, p.first_offset + p.message_count - 1, p.created_at)
            ORDER BY p.first_offset DESC
        ))[1]
    FROM penstock.schedules s
    CROSS JOIN LATERAL penstock.push(
        s.queue, array_fill(s.value, ARRAY[cardinality(slots)]), s.partition,
        CASE WHEN s.key IS NOT NULL THEN array_fill(s.key, ARRAY[cardinality(slots)]) END,
        ARRAY(
            SELECT coalesce(s.headers, '{}') || jsonb_build_object(
                'penstock-schedule', s.name,
                'penstock-slot',
                replace(to_char(u.slot AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), '.000000', '')
            )
            FROM unnest(slots) WITH ORDINALITY u (slot, n)
            ORDER BY u.n
        )
    ) p
    WHERE s.name = schedule_name
$$;
