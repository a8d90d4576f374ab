-- penstock.read_unique_answer(answer)
--
-- Returns an answer of push_unique_segments as rows; it is stored as JSON, so that a repeated push gets the same answer.
--
-- Parameters: answer - an array of objects, one per segment.
-- Returns: one row per segment, in order.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.read_unique_answer(answer jsonb)
RETURNS TABLE (
    outcome text, partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz,
    scheduled_id bigint, due_at timestamptz,
    earlier_partition_id bigint, earlier_offset bigint, earlier_time timestamptz, earlier_scheduled_id bigint
)
LANGUAGE sql STABLE
AS $$
    SELECT * FROM jsonb_to_recordset(answer) AS r (
        outcome text, partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz,
        scheduled_id bigint, due_at timestamptz,
        earlier_partition_id bigint, earlier_offset bigint, earlier_time timestamptz, earlier_scheduled_id bigint
    )
$$;
