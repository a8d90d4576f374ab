-- penstock.trim_unique_keys(target)
--
-- Deletes the unique keys of a partition that count no more: their message is done in all groups or dropped, and the
-- time for which a push asked is over; or it was scheduled and cancelled. Notes where scheduled ones went. Waits for
-- nobody.
--
-- Parameters: target - the partition.
-- Returns: the number deleted.
-- Calls: partition_span, consumed_to. Tables: unique_keys (update, delete), unique_moves (delete), scheduled,
-- partitions, consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.trim_unique_keys(target bigint)
RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    done_below bigint;
    trimmed    integer;
BEGIN
    UPDATE penstock.unique_keys k
    SET message_offset = m.message_offset, seen_at = m.created_at, scheduled_id = NULL
    FROM penstock.unique_moves m
    WHERE k.ctid = ANY (ARRAY(
        SELECT k.ctid FROM penstock.unique_keys k
        WHERE k.partition_id = target AND k.message_offset IS NULL
        FOR UPDATE SKIP LOCKED
    ))
      AND m.scheduled_id = k.scheduled_id;
    DELETE FROM penstock.unique_moves m
    WHERE m.partition_id = target AND NOT EXISTS (
        SELECT 1 FROM penstock.unique_keys k
        WHERE k.partition_id = target AND k.message_offset IS NULL AND k.scheduled_id = m.scheduled_id
    );
    SELECT CASE
        WHEN EXISTS (
            SELECT 1 FROM penstock.partitions p
            JOIN penstock.consumer_groups g ON g.queue_id = p.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
            WHERE p.partition_id = target
        ) THEN greatest(penstock.consumed_to(target), s.floor_offset)
        ELSE s.floor_offset
    END
    INTO done_below
    FROM penstock.partition_span(target) s;
    DELETE FROM penstock.unique_keys k
    WHERE k.ctid = ANY (ARRAY(
        SELECT k.ctid FROM penstock.unique_keys k
        WHERE k.partition_id = target AND (
            k.message_offset < done_below AND k.seen_at + make_interval(secs => k.keep_for) <= clock_timestamp()
            OR k.message_offset IS NULL
                AND NOT EXISTS (SELECT 1 FROM penstock.scheduled s WHERE s.scheduled_id = k.scheduled_id)
                AND NOT EXISTS (SELECT 1 FROM penstock.unique_moves m WHERE m.scheduled_id = k.scheduled_id)
        )
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS trimmed = ROW_COUNT;
    RETURN trimmed;
END
$$;
