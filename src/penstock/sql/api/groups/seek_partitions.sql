-- penstock.seek_partitions(queue_name, group_name, partition_name, to_offset, to_time, to_end, preview,
--                          after_partition, max_partitions)
--
-- Moves a group to another position, a chunk of partitions at a time, concurrently with pushes and pops. A claim that
-- is held there loses its lease. Call it again with the returned position until that is null.
--
-- Parameters: partition_name - null for all; to_offset, to_time or to_end ('earliest', 'latest') - the new position:
-- exactly one of them; preview - change nothing, only return what would happen.
-- Returns: one row: the partitions visited and moved, the messages that will be delivered again and that will be
-- skipped, the claims that lose their lease, the partitions that were busy (call again), and the position for the
-- next call.
-- Calls: find_group, find_partition, require_read_committed, seek_partition. Tables: consumer_groups (lock),
-- partitions, queues (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.seek_partitions(
    queue_name      text,
    group_name      text,
    partition_name  text        DEFAULT NULL,
    to_offset       bigint      DEFAULT NULL,
    to_time         timestamptz DEFAULT NULL,
    to_end          text        DEFAULT NULL,
    preview         boolean     DEFAULT false,
    after_partition bigint      DEFAULT 0,
    max_partitions  integer     DEFAULT 1000
)
RETURNS TABLE (
    visited bigint, moved bigint, redelivered bigint, skipped bigint, revoked bigint, busy bigint, next_partition bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    seeking integer := penstock.find_group(queue_name, group_name);
    wanted  bigint := CASE
        WHEN partition_name IS NOT NULL THEN penstock.find_partition(queue_name, partition_name)
    END;
BEGIN
    PERFORM penstock.require_read_committed('seek');
    IF num_nonnulls(to_offset, to_time, to_end) <> 1 OR to_end NOT IN ('earliest', 'latest') OR to_offset < 0 THEN
        RAISE EXCEPTION 'seek requires exactly one of: an offset of 0 or above, a time, earliest, latest'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT preview THEN
        -- Against delete_group, which would not see what is appended here.
        PERFORM 1 FROM penstock.consumer_groups g WHERE g.group_id = seeking FOR KEY SHARE;
        IF NOT FOUND THEN
            PERFORM penstock.find_group(queue_name, group_name);
        END IF;
    END IF;
    SELECT
        count(*), count(*) FILTER (WHERE s.outcome = 'moved'),
        coalesce(sum(greatest(s.was_at - s.now_at, 0)) FILTER (WHERE s.outcome = 'moved'), 0),
        coalesce(sum(greatest(s.now_at - s.was_at, 0)) FILTER (WHERE s.outcome = 'moved'), 0),
        count(*) FILTER (WHERE s.revoked AND s.outcome = 'moved'), count(*) FILTER (WHERE s.outcome = 'busy'),
        CASE WHEN count(*) = max_partitions THEN max(p.partition_id) END
    INTO visited, moved, redelivered, skipped, revoked, busy, next_partition
    FROM (
        SELECT p.partition_id FROM penstock.partitions p
        JOIN penstock.queues q ON q.queue_id = p.queue_id
        WHERE q.name = queue_name AND p.partition_id > after_partition AND p.lane_of IS NULL
          AND (wanted IS NULL OR p.partition_id = wanted)
        ORDER BY p.partition_id
        LIMIT max_partitions
    ) p
    CROSS JOIN LATERAL penstock.seek_partition(seeking, p.partition_id, to_offset, to_time, to_end, preview) s;
    RETURN NEXT;
END
$$;
