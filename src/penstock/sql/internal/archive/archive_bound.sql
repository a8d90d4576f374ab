-- penstock.archive_bound(target, settings)
--
-- How far retention may drop a partition, as far as the archive is concerned. A queue of which no archive was ever begun
-- does not wait for one, unless its setting keep_until_archived is on; and none waits where that is off. Private lanes
-- are never archived, so nothing of them waits.
--
-- Parameters: target - the partition; settings - its queue's.
-- Returns: the offset; the largest there is when nothing waits.
-- Calls: archived_to. Tables: partitions, archives (read).
CREATE OR REPLACE FUNCTION penstock.archive_bound(target bigint, settings jsonb)
RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN p.lane_of IS NULL AND CASE settings ->> 'keep_until_archived'
            WHEN 'on' THEN true
            WHEN 'off' THEN false
            ELSE EXISTS (SELECT 1 FROM penstock.archives a WHERE a.queue_id = p.queue_id)
        END THEN penstock.archived_to(target)
        ELSE 9223372036854775807
    END
    FROM penstock.partitions p
    WHERE p.partition_id = target
$$;
