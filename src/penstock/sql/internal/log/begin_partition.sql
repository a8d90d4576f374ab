-- penstock.begin_partition(target_group, target, base_offset, moment)
--
-- Says where a group that does not read all there is begins in a partition, and notes it for `verify`: at the first message
-- from its moment on, or at the one that is being pushed. That one need not be the first: the pushes of others may not
-- have known of the group, or may have left a late wake-up that the sweep has not fired yet.
--
-- Parameters: base_offset - the first offset that is being pushed, null for none; moment - from when on the group reads.
-- Returns: the offset.
-- Calls: offset_at. Tables: beginnings (insert).
CREATE OR REPLACE FUNCTION penstock.begin_partition(
    target_group integer, target bigint, base_offset bigint, moment timestamptz
)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    begins bigint := least(base_offset, penstock.offset_at(target, moment));
BEGIN
    INSERT INTO penstock.beginnings (group_id, partition_id, base_offset) VALUES (target_group, target, begins)
    ON CONFLICT DO NOTHING;
    RETURN begins;
END
$$;
