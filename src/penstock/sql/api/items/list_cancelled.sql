-- penstock.list_cancelled(group_ids, partition_ids)
--
-- Lists the messages of partitions that were cancelled while they wait or are in flight: what a worker asks about what it
-- works on. It writes nothing.
--
-- Parameters: parallel arrays, an entry per (group, partition).
-- Returns: a row per message.
-- Calls: nothing. Tables: cancellations (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_cancelled(group_ids integer[], partition_ids bigint[])
RETURNS TABLE (group_id integer, partition_id bigint, message_offset bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    SELECT c.group_id, c.partition_id, c.message_offset
    FROM (SELECT DISTINCT w.* FROM unnest(group_ids, partition_ids) w (group_id, partition_id)) u
    CROSS JOIN LATERAL (
        SELECT c.group_id, c.partition_id, c.message_offset FROM penstock.cancellations c
        WHERE c.group_id = u.group_id AND c.partition_id = u.partition_id AND NOT c.passed
        ORDER BY c.message_offset
        LIMIT 10000
    ) c
$$;
