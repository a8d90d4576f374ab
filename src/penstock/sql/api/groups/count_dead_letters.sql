-- penstock.count_dead_letters(queue_name, group_name)
--
-- Counts the dead letters of each reason.
--
-- Parameters: group_name - null for all groups of the queue.
-- Returns: a row per group and reason, the most frequent first.
-- Calls: find_queue. Tables: dead_letters, consumer_groups (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.count_dead_letters(queue_name text, group_name text DEFAULT NULL)
RETURNS TABLE (
    consumer_group text, reason text, letters bigint, first_died_at timestamptz, last_died_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- Looked up before and not within the query, where an empty table would keep it from being asked at all.
    queue integer := penstock.find_queue(queue_name);
BEGIN
    RETURN QUERY
    SELECT g.name, d.reason, count(*), min(d.died_at), max(d.died_at)
    FROM penstock.dead_letters d
    JOIN penstock.consumer_groups g ON g.group_id = d.group_id
    WHERE d.queue_id = queue
      AND (count_dead_letters.group_name IS NULL OR g.name = count_dead_letters.group_name)
    GROUP BY g.name, d.reason
    ORDER BY count(*) DESC, g.name, d.reason;
END
$$;
