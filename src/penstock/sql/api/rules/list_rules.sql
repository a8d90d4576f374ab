-- penstock.list_rules()
--
-- Lists the rules for dead letters, and how many each has redriven.
--
-- Parameters: none.
-- Returns: a row per rule, by name.
-- Calls: nothing. Tables: dead_letter_rules (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_rules()
RETURNS TABLE (
    name text, queue text, consumer_group text, reason text, error_text text, backoff float8, backoff_factor float8,
    max_redrives integer, created_at timestamptz, redriven bigint, last_redriven timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        r.name, r.queue_name, r.group_name, r.reason, r.error_text, r.backoff, r.backoff_factor, r.max_redrives,
        r.created_at, r.redriven, r.last_redriven
    FROM penstock.dead_letter_rules r
    ORDER BY r.name
$$;
