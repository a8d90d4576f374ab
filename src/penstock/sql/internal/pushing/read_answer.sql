-- penstock.read_answer(answer)
--
-- Returns an answer of push_with_options as rows; it is stored as JSON, so that a repeated push gets the same answer.
--
-- Parameters: answer - an array of objects, one per segment.
-- Returns: one row per segment, in order.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.read_answer(answer jsonb)
RETURNS TABLE (
    partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz,
    scheduled_id bigint, due_at timestamptz,
    duplicate_positions integer[], duplicate_offsets bigint[], duplicate_times timestamptz[],
    duplicate_scheduled_ids bigint[]
)
LANGUAGE sql STABLE
AS $$
    SELECT * FROM jsonb_to_recordset(answer) AS r (
        partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz,
        scheduled_id bigint, due_at timestamptz,
        duplicate_positions integer[], duplicate_offsets bigint[], duplicate_times timestamptz[],
        duplicate_scheduled_ids bigint[]
    )
$$;
