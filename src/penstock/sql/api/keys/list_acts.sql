-- penstock.list_acts(before_id, max_rows, of_actor, of_action, since)
--
-- Lists administrative acts, newest first.
--
-- Parameters: before_id - where the last page ended; null for the newest; max_rows - the largest number of rows; of_actor,
-- of_action - null for all; since - the oldest time, null for all.
-- Returns: a row per act.
-- Calls: nothing. Tables: audit_log (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.list_acts(
    before_id bigint DEFAULT NULL, max_rows integer DEFAULT 100, of_actor text DEFAULT NULL,
    of_action text DEFAULT NULL, since timestamptz DEFAULT NULL
)
RETURNS TABLE (
    act_id bigint, at timestamptz, actor text, action text, target text, details jsonb, origin text, result text,
    db_user text
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT a.act_id, a.at, a.actor, a.action, a.target, a.details, a.origin, a.result, a.db_user
    FROM penstock.audit_log a
    WHERE (before_id IS NULL OR a.act_id < before_id)
      AND (of_actor IS NULL OR a.actor = of_actor)
      AND (of_action IS NULL OR a.action = of_action)
      AND (since IS NULL OR a.at >= since)
    ORDER BY a.act_id DESC
    LIMIT max_rows
$$;
