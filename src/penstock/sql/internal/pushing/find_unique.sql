-- penstock.find_unique(queues, keys)
--
-- Finds the newest message of each unique key, and what became of it. The caller has locked the keys.
--
-- Parameters: parallel arrays: the id of a queue, and a key of it.
-- Returns: a row per key that has a message, also one that is done: its position in the arrays, from 1; where the
-- message is, or the id under which it is scheduled; its time, infinity while it is scheduled; its state, as
-- unique_state tells it, and whether it can give way to another. A message that was scheduled and cancelled is none.
-- Calls: unique_state. Tables: unique_keys, unique_moves, scheduled (read).
CREATE OR REPLACE FUNCTION penstock.find_unique(queues integer[], keys text[])
RETURNS TABLE (
    nth integer, partition_id bigint, message_offset bigint, scheduled_id bigint, seen_at timestamptz, state text,
    can_give_way boolean
)
LANGUAGE sql STABLE
AS $$
    SELECT
        w.nth::integer, coalesce(m.partition_id, k.partition_id), coalesce(m.message_offset, k.message_offset),
        s.scheduled_id, coalesce(m.created_at, k.seen_at),
        coalesce(u.state, 'waiting'), coalesce(u.can_cancel, true)
    FROM unnest(queues, keys) WITH ORDINALITY w (queue_id, unique_key, nth)
    -- LIMIT, here and below: a plain join, planned for a small table, goes through all rows there are.
    CROSS JOIN LATERAL (
        SELECT k.* FROM penstock.unique_keys k
        WHERE k.queue_id = w.queue_id AND k.unique_key = w.unique_key
        LIMIT 1
    ) k
    LEFT JOIN LATERAL (
        SELECT s.scheduled_id FROM penstock.scheduled s WHERE s.scheduled_id = k.scheduled_id LIMIT 1
    ) s ON true
    LEFT JOIN LATERAL (
        SELECT m.* FROM penstock.unique_moves m WHERE m.scheduled_id = k.scheduled_id LIMIT 1
    ) m ON true
    LEFT JOIN LATERAL penstock.unique_state(
        coalesce(m.partition_id, k.partition_id), coalesce(m.message_offset, k.message_offset)
    ) u ON s.scheduled_id IS NULL
    WHERE k.partition_id IS NOT NULL AND (
        k.message_offset IS NOT NULL OR s.scheduled_id IS NOT NULL OR m.scheduled_id IS NOT NULL
    )
$$;
