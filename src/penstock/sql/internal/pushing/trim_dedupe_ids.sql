-- penstock.trim_dedupe_ids(max_rows)
--
-- Deletes dedupe ids that are older than their window. They have no effect any more, so this may come late. Waits for
-- nobody.
--
-- Parameters: max_rows - the largest number.
-- Returns: the number deleted; call it again until it is less than max_rows.
-- Calls: nothing. Tables: queues (read), dedupe_ids (delete).
CREATE OR REPLACE FUNCTION penstock.trim_dedupe_ids(max_rows integer DEFAULT 1000)
RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    queue   record;
    trimmed integer := 0;
    found   integer;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM penstock.dedupe_ids) THEN
        RETURN 0;
    END IF;
    FOR queue IN
        SELECT q.queue_id, make_interval(secs => (q.settings ->> 'dedupe_window')::numeric::float8) AS dedupe_window
        FROM penstock.queues q
    LOOP
        DELETE FROM penstock.dedupe_ids k
        WHERE k.ctid = ANY (ARRAY(
            SELECT k.ctid FROM penstock.dedupe_ids k
            WHERE k.queue_id = queue.queue_id AND k.seen_at <= clock_timestamp() - queue.dedupe_window
            ORDER BY k.seen_at
            LIMIT max_rows - trimmed
            FOR UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS found = ROW_COUNT;
        trimmed := trimmed + found;
        EXIT WHEN trimmed >= max_rows;
    END LOOP;
    RETURN trimmed;
END
$$;
