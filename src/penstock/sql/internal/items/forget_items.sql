-- penstock.forget_items(group_ids, partition_ids, offsets)
--
-- Deletes notes and steps of items that are settled.
--
-- Parameters: parallel arrays.
-- Returns: nothing.
-- Calls: nothing. Tables: item_notes, item_steps (delete).
CREATE OR REPLACE FUNCTION penstock.forget_items(group_ids integer[], partition_ids bigint[], offsets bigint[])
RETURNS void
LANGUAGE sql
AS $$
    DELETE FROM penstock.item_steps s
    USING unnest(group_ids, partition_ids, offsets) u (group_id, partition_id, message_offset)
    WHERE s.group_id = u.group_id AND s.partition_id = u.partition_id AND s.message_offset = u.message_offset;
    DELETE FROM penstock.item_notes n
    USING unnest(group_ids, partition_ids, offsets) u (group_id, partition_id, message_offset)
    WHERE n.group_id = u.group_id AND n.partition_id = u.partition_id AND n.message_offset = u.message_offset
$$;
