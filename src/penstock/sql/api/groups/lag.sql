-- penstock.lag(queue_name, group_name)
--
-- Returns the number of messages that a group has not acknowledged: head − committed, subtracted and not counted. Where more than
-- 10,000 partitions wait it is that of the last sample.
--
-- Parameters: the names.
-- Returns: the lag; raises undefined_object when there is no such group.
-- Calls: find_group, group_summary. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.lag(queue_name text, group_name text)
RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT w.lag FROM penstock.group_summary(penstock.find_group(queue_name, group_name)) w
$$;
