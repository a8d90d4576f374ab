-- penstock.list_schedules(names)
--
-- Describes schedules.
--
-- Parameters: names - null for all.
-- Returns: a row per schedule, in the order of their names: the columns of the table.
-- Calls: nothing. Tables: schedules (read).
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.list_schedules(names text[] DEFAULT NULL)
RETURNS TABLE (
    name text, kind text, spec text, tz text, start_at timestamptz, queue text, value bytea, partition text, key text,
    headers jsonb, missed text, source text, origin text, paused boolean, undeclared_at timestamptz,
    done_to timestamptz, next_at timestamptz, last_slot timestamptz, last_at timestamptz, last_id uuid,
    error text, failed_at timestamptz, revision bigint, created_at timestamptz, changed_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        s.name, s.kind, s.spec, s.tz, s.start_at, s.queue, s.value, s.partition, s.key, s.headers, s.missed, s.source,
        s.origin, s.paused, s.undeclared_at, s.done_to, s.next_at, s.last_slot, s.last_at, s.last_id, s.error,
        s.failed_at, s.revision, s.created_at, s.changed_at
    FROM penstock.schedules s
    WHERE names IS NULL OR s.name = ANY (names)
    ORDER BY s.name COLLATE "C"
$$;
