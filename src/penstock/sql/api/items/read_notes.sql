-- penstock.read_notes(group_id, partition_id, lease_id, message_offset)
--
-- Reads what earlier attempts of an item noted, and which of its steps are done. Only for who holds the item.
--
-- Parameters: the claim and the offset of the message.
-- Returns: one row; none when the lease is not live.
-- Calls: newest_state. Tables: claims, item_notes, item_steps (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.read_notes(
    group_id integer, partition_id bigint, lease_id uuid, message_offset bigint
)
RETURNS TABLE (progress float8, note text, checkpoint json, step_names text[], step_results json[])
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT n.progress, n.note, n.checkpoint, coalesce(s.names, '{}'), coalesce(s.results, '{}')
    FROM (SELECT) one
    LEFT JOIN penstock.item_notes n ON n.group_id = read_notes.group_id AND n.partition_id = read_notes.partition_id
        AND n.message_offset = read_notes.message_offset
    CROSS JOIN LATERAL (
        SELECT array_agg(s.name ORDER BY s.done_at) AS names, array_agg(s.result ORDER BY s.done_at) AS results
        FROM penstock.item_steps s
        WHERE s.group_id = read_notes.group_id AND s.partition_id = read_notes.partition_id
          AND s.message_offset = read_notes.message_offset
    ) s
    WHERE EXISTS (
        SELECT 1 FROM penstock.newest_state(read_notes.group_id, read_notes.partition_id) j
        WHERE j.state = 'c' AND j.lease_id = read_notes.lease_id AND j.due_at > clock_timestamp()
          AND read_notes.message_offset >= j.committed AND read_notes.message_offset < j.claimed_to
    ) OR EXISTS (
        SELECT 1 FROM penstock.claims c
        WHERE c.group_id = read_notes.group_id AND c.partition_id = read_notes.partition_id
          AND c.lease_id = read_notes.lease_id AND c.due_at > clock_timestamp()
          AND read_notes.message_offset >= c.lo AND read_notes.message_offset < c.hi
    );
END
$$;
