-- penstock.discard(queue_name, group_name, wanted_reason, wanted_ids, max_rows)
--
-- Deletes dead letters, a chunk at a time.
--
-- Parameters: those of take_dead_letters.
-- Returns: the number deleted; call it again until it returns 0.
-- Calls: take_dead_letters. Tables: none of its own.
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.discard(
    queue_name text, group_name text DEFAULT NULL, wanted_reason text DEFAULT NULL, wanted_ids bigint[] DEFAULT NULL,
    max_rows integer DEFAULT 1000
)
RETURNS bigint
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT count(*) FROM penstock.take_dead_letters(queue_name, group_name, wanted_reason, wanted_ids, max_rows)
$$;
