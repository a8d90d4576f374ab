-- penstock.get_segment(id)
--
-- Finds one message by its id, still packed. The id contains the address, so this is one index probe.
--
-- Parameters: id - a message id.
-- Returns: queue, partition and a slice of one message; no row when there is no such message, or no longer.
-- Calls: message_address, message_id, segment_slices, time_in_runs. Tables: queues, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.get_segment(id uuid)
RETURNS TABLE (
    queue_name text, partition_name text, partition_id bigint,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT q.name, p.name, p.partition_id, s.*
    FROM penstock.message_address(get_segment.id) a
    JOIN penstock.partitions p ON p.partition_id = a.partition_id
    JOIN penstock.queues q ON q.queue_id = p.queue_id
    CROSS JOIN LATERAL penstock.segment_slices(a.partition_id, a.message_offset, a.message_offset + 1) s
    -- The same offset with another time is another message: the id is forged or from another database.
    WHERE penstock.message_id(
        a.partition_id, a.message_offset, penstock.time_in_runs(s.created_at, s.run_counts, s.run_times, s.run_skip)
    ) = get_segment.id
$$;
