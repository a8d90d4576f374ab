-- penstock.look_again(reader)
--
-- Looks at partitions that a group has just parked: a push that was under way then has woken nobody, and may have
-- committed since. The sweep's second look would find it, too, but only when the partition is due. This spares whoever
-- waits those milliseconds.
--
-- It looks at the last few that were parked, whichever group they belong to, so that it costs the same however many
-- there are. It waits for nothing, but holds the partitions that it wakes until the transaction ends: call it only in
-- one that ends at once.
--
-- Parameters: the id of the group.
-- Returns: whether it has put a partition in the ready list.
-- Calls: sweep_timer. Tables: journal, segments (read).
CREATE OR REPLACE FUNCTION penstock.look_again(reader integer)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    parked record;
    woken  boolean := false;
BEGIN
    FOR parked IN
        SELECT p.partition_id, p.version
        FROM (
            SELECT j.group_id, j.partition_id, j.version, j.committed FROM penstock.journal j
            WHERE j.state = 'p' AND j.due_at > clock_timestamp()
              AND j.due_at <= clock_timestamp() + interval '50 milliseconds'
            ORDER BY j.due_at DESC
            LIMIT 8
        ) p
        WHERE p.group_id = reader
          AND p.committed < (
              SELECT s.base_offset + s.count FROM penstock.segments s
              WHERE s.partition_id = p.partition_id
              ORDER BY s.base_offset DESC
              LIMIT 1
          )
          -- Most rows are of partitions that were woken since.
          AND NOT EXISTS (
              SELECT 1 FROM penstock.journal n
              WHERE n.group_id = p.group_id AND n.partition_id = p.partition_id AND n.version > p.version
          )
    LOOP
        woken := penstock.sweep_timer(reader, parked.partition_id, parked.version, 'p') OR woken;
    END LOOP;
    RETURN woken;
END
$$;
