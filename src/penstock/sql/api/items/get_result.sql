-- penstock.get_result(message_id, group_name)
--
-- Reads what a handler returned or raised, of a message that was pushed with the wish to know. Where nothing is kept, it says
-- what the message is to the group instead, by positions.
--
-- Parameters: message_id; group_name - null for any group.
-- Returns: a row per group: state is 'returned' (JSON), 'returned bytes', 'raised', 'discarded', 'cancelled' or 'too large' where a result is kept, else
-- as in message_state; no row where there is no such message or group.
-- Calls: message_address, message_states. Tables: item_results (read).
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.get_result(message_id uuid, group_name text DEFAULT NULL)
RETURNS TABLE (consumer_group text, state text, kept boolean, value bytea, error text, expires_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT
        s.consumer_group, coalesce(r.state, s.state), r.state IS NOT NULL, r.value,
        CASE WHEN r.state IS NULL THEN s.error ELSE r.error END, r.expires_at
    FROM penstock.message_address(get_result.message_id) a
    CROSS JOIN LATERAL penstock.message_states(a.partition_id, a.message_offset, group_name) s
    LEFT JOIN penstock.item_results r ON r.partition_id = a.partition_id AND r.message_offset = a.message_offset
        AND r.group_id = s.group_id AND r.expires_at > clock_timestamp()
    WHERE s.group_id IS NOT NULL AND s.state IS NOT NULL
$$;
