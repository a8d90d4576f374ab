-- penstock.pushed_before(producer, sequence)
--
-- Returns the answer to an earlier push with the same producer and sequence.
--
-- Parameters: those of push_segments.
-- Returns: one row per segment, in the order given; no row if there was no such push.
-- Calls: nothing. Tables: producers (read).
CREATE OR REPLACE FUNCTION penstock.pushed_before(producer uuid, sequence bigint)
RETURNS TABLE (partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz)
LANGUAGE sql STABLE
AS $$
    SELECT u.partition_id, u.first_offset, u.count, u.created_at
    FROM penstock.producers d
    CROSS JOIN LATERAL unnest(
        coalesce(d.partition_ids, ARRAY[d.partition_id]), coalesce(d.first_offsets, ARRAY[d.first_offset]),
        coalesce(d.counts, ARRAY[d.count]), coalesce(d.times, ARRAY[d.pushed_at])
    ) WITH ORDINALITY u (partition_id, first_offset, count, created_at, nth)
    WHERE d.producer = pushed_before.producer AND d.sequence = pushed_before.sequence AND d.answer IS NULL
    ORDER BY u.nth
$$;
