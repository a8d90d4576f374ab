-- penstock.trim_items(max_rows)
--
-- Deletes what is kept of items and not needed any more: results whose time is up, notes and steps of items that ended
-- without being settled (they died with their worker, or a seek passed them), and cancellations of messages that their
-- group has passed. Waits for nobody.
--
-- Parameters: max_rows - the largest number of rows of each kind.
-- Returns: the largest of the numbers of rows that were deleted; call it again while it is max_rows.
-- Calls: item_state, forget_items, refresh_gate. Tables: item_results, cancellations (delete, update), item_notes
-- (update), consumer_groups (lock), partitions (read).
CREATE OR REPLACE FUNCTION penstock.trim_items(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    deleted integer;
    most    integer;
    ended   record;
    reader  integer;
BEGIN
    DELETE FROM penstock.item_results r
    WHERE r.ctid = ANY (ARRAY(
        SELECT r.ctid FROM penstock.item_results r
        WHERE r.expires_at < clock_timestamp()
        ORDER BY r.expires_at
        LIMIT max_rows
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS most = ROW_COUNT;

    -- Whoever notes an item is about to settle it. An item that is still open is looked at again later.
    WITH looked AS (
        UPDATE penstock.item_notes n
        SET looked_at = clock_timestamp()
        WHERE n.ctid = ANY (ARRAY(
            SELECT n.ctid FROM penstock.item_notes n
            WHERE n.looked_at < clock_timestamp() - interval '1 hour'
            ORDER BY n.looked_at
            LIMIT max_rows
            FOR UPDATE SKIP LOCKED
        ))
        RETURNING n.group_id, n.partition_id, n.message_offset
    )
    SELECT
        count(*) AS rows, array_agg(l.group_id) FILTER (WHERE s.ended) AS group_ids,
        array_agg(l.partition_id) FILTER (WHERE s.ended) AS partition_ids,
        array_agg(l.message_offset) FILTER (WHERE s.ended) AS offsets
    INTO ended
    FROM looked l
    CROSS JOIN LATERAL (
        SELECT coalesce(i.state, 'done') = 'done' AS ended
        FROM penstock.item_state(l.group_id, l.partition_id, l.message_offset) i
    ) s;
    IF ended.offsets IS NOT NULL THEN
        PERFORM penstock.forget_items(ended.group_ids, ended.partition_ids, ended.offsets);
    END IF;
    most := greatest(most, ended.rows);

    DELETE FROM penstock.cancellations c
    WHERE c.ctid = ANY (ARRAY(
        SELECT c.ctid FROM penstock.cancellations c
        WHERE c.passed AND c.cancelled_at < clock_timestamp() - interval '1 day'
        ORDER BY c.cancelled_at
        LIMIT max_rows
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    -- Of no group or partition: a restore or an earlier version may have left them.
    DELETE FROM penstock.cancellations c
    WHERE c.ctid = ANY (ARRAY(
        SELECT c.ctid
        FROM (
            SELECT c.ctid, c.group_id, c.partition_id FROM penstock.cancellations c
            WHERE NOT c.passed
            ORDER BY c.group_id, c.partition_id, c.message_offset
            LIMIT max_rows
            FOR UPDATE SKIP LOCKED
        ) c
        WHERE NOT EXISTS (SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = c.group_id)
           OR NOT EXISTS (SELECT 1 FROM penstock.partitions p WHERE p.partition_id = c.partition_id)
    ));
    UPDATE penstock.cancellations c
    SET passed = true
    WHERE c.ctid = ANY (ARRAY(
        SELECT c.ctid
        FROM (
            SELECT c.ctid, c.group_id, c.partition_id, c.message_offset FROM penstock.cancellations c
            WHERE NOT c.passed
            ORDER BY c.group_id, c.partition_id, c.message_offset
            LIMIT max_rows
            FOR UPDATE SKIP LOCKED
        ) c
        CROSS JOIN LATERAL penstock.item_state(c.group_id, c.partition_id, c.message_offset) i
        WHERE coalesce(i.state, 'done') = 'done'
    ));
    -- A group that somebody is just changing is looked at in the next pass.
    FOR reader IN
        SELECT g.group_id FROM penstock.consumer_groups g
        WHERE g.gated
          AND EXISTS (SELECT 1 FROM penstock.cancellations c WHERE c.group_id = g.group_id)
          AND NOT EXISTS (SELECT 1 FROM penstock.cancellations c WHERE c.group_id = g.group_id AND NOT c.passed)
        ORDER BY g.group_id
        FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        PERFORM penstock.refresh_gate(reader);
    END LOOP;
    RETURN greatest(most, deleted);
END
$$;
