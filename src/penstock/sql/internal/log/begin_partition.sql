-- penstock.begin_partition(target_group, target, base_offset, moment)
--
-- Returns where a group with a subscription other than 'all' begins in a partition, and records it for `verify`: at
-- the first message that is not older than `moment`, or at the one that is being pushed. That one need not be the
-- first: other pushes may not have seen the group, or may have left a late wake-up that has not fired.
--
-- Parameters: base_offset - the first offset that is being pushed, null for none; moment - the start of the
-- subscription.
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
