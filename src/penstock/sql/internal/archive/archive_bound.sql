-- penstock.archive_bound(target, settings)
--
-- Returns up to which offset retention may drop a partition with regard to the archive. A queue that was never
-- archived does not wait for an archive unless its setting keep_until_archived is on, and none does if that is off.
-- Private lanes are never archived and never wait.
--
-- Parameters: target - the partition; settings - its queue's.
-- Returns: the offset; the largest bigint if nothing waits.
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
