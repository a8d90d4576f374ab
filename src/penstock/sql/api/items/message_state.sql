-- penstock.message_state(message_id)
--
-- Says what a message is to each group of its queue, by the groups' positions: nothing is searched, however much is stored.
--
-- Parameters: message_id.
-- Returns: a row per group; one without a group where the queue has none; no row where there is no such message. state -
-- 'waiting'; 'in flight' with the consumer, until due_at; 'delayed' or 'retrying' until due_at; 'done'; 'dead' with the dead
-- letter; 'cancelled'; 'dropped' by retention before the group had it; null: it is not for this group, which began later.
-- cancelled_at - also of one that is in flight. progress, note - what its handler noted.
-- Calls: message_address, message_states. Tables: none of its own.
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.message_state(message_id uuid)
RETURNS TABLE (
    queue text, partition_name text, message_offset bigint, consumer_group text, state text, attempt integer,
    due_at timestamptz, consumer text, error text, dead_letter_id bigint, cancelled_at timestamptz, progress float8,
    note text, noted_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT
        s.queue, s.partition_of, a.message_offset, s.consumer_group, s.state, s.attempt, s.due_at, s.consumer, s.error,
        s.dead_letter_id, s.cancelled_at, s.progress, s.note, s.noted_at
    FROM penstock.message_address(message_state.message_id) a
    CROSS JOIN LATERAL penstock.message_states(a.partition_id, a.message_offset) s
$$;
