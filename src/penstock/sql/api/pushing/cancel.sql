-- penstock.cancel(scheduled_ids)
--
-- Cancels scheduled messages: they will never be in the log. Their dedupe ids are deleted, so that the same messages
-- can be pushed again. Waits for a sweep that is publishing one of them.
--
-- Parameters: scheduled_ids - ids that a push returned or list_scheduled shows.
-- Returns: the ids that were cancelled. The others were published or cancelled before.
-- Calls: use_lock_timeout. Tables: scheduled, dedupe_ids (delete), partitions (lock).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.cancel(scheduled_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    cancelled bigint[];
BEGIN
    PERFORM penstock.use_lock_timeout();
    -- Dedupe ids belong to whoever holds their partition's lock, and partitions come first, as in a push.
    PERFORM 1 FROM penstock.partitions p
    WHERE p.partition_id = ANY (ARRAY(
        SELECT s.partition_id
        FROM unnest(cancel.scheduled_ids) w (scheduled_id)
        -- A range, in order: with an equality the planner takes any index that has the column, while they are small.
        CROSS JOIN LATERAL (
            SELECT n.partition_id, n.dedupe_ids FROM penstock.scheduled n
            WHERE n.scheduled_id >= w.scheduled_id AND n.scheduled_id <= w.scheduled_id
            ORDER BY n.scheduled_id
            LIMIT 1
        ) s
        WHERE s.dedupe_ids IS NOT NULL
    ))
    ORDER BY p.partition_id
    FOR NO KEY UPDATE;
    PERFORM 1
    FROM unnest(ARRAY(SELECT DISTINCT i FROM unnest(cancel.scheduled_ids) i ORDER BY i)) w (scheduled_id)
    CROSS JOIN LATERAL (
        SELECT 1 FROM penstock.scheduled n
        WHERE n.scheduled_id >= w.scheduled_id AND n.scheduled_id <= w.scheduled_id
        ORDER BY n.scheduled_id
        LIMIT 1
        FOR UPDATE
    ) s;
    -- A new statement, hence a new snapshot: one that was replaced while we waited lies elsewhere.
    WITH wanted AS MATERIALIZED (
        SELECT s.place
        FROM unnest(ARRAY(SELECT DISTINCT i FROM unnest(cancel.scheduled_ids) i ORDER BY i)) w (scheduled_id)
        CROSS JOIN LATERAL (
            SELECT n.ctid AS place FROM penstock.scheduled n
            WHERE n.scheduled_id >= w.scheduled_id AND n.scheduled_id <= w.scheduled_id
            ORDER BY n.scheduled_id
            LIMIT 1
        ) s
    ), gone AS (
        DELETE FROM penstock.scheduled s
        WHERE s.ctid = ANY (ARRAY(SELECT w.place FROM wanted w))
        RETURNING s.scheduled_id, s.partition_id, s.dedupe_ids
    ), forgotten AS (
        DELETE FROM penstock.dedupe_ids k
        USING gone g
        WHERE k.partition_id = g.partition_id AND k.dedupe_id = ANY (g.dedupe_ids) AND k.scheduled_id = g.scheduled_id
    )
    SELECT array_agg(g.scheduled_id ORDER BY g.scheduled_id) INTO cancelled FROM gone g;
    RETURN coalesce(cancelled, '{}');
END
$$;
