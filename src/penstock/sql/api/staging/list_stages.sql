-- penstock.list_stages()
--
-- Lists the stages: what Spark jobs have written and not published.
--
-- Returns: a row per stage, oldest first: its writer, its size, and when it was last written to.
-- Calls: nothing. Tables: stages, staged, segments (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.list_stages()
RETURNS TABLE (
    stage_id bigint, writer text, run text, epoch bigint, segments bigint, messages bigint, bytes bigint,
    last_written timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        s.stage_id, s.writer, s.run, s.epoch, g.segments, g.messages, g.bytes,
        greatest(s.created_at, (SELECT max(d.staged_at) FROM penstock.staged d WHERE d.stage_id = s.stage_id))
    FROM penstock.stages s
    CROSS JOIN LATERAL (
        SELECT count(*) AS segments, coalesce(sum(g.count), 0)::bigint AS messages, coalesce(sum(g.bytes), 0)::bigint AS bytes
        FROM penstock.segments g
        WHERE g.partition_id = -s.stage_id
    ) g
    ORDER BY s.stage_id
$$;
