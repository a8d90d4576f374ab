-- penstock.published_child(snapshot)
--
-- The snapshot that follows another one and whose epoch reached a penstock sink. A query that comes here again, because its
-- checkpoint went back, must read the very same once more.
--
-- Parameters: snapshot.
-- Returns: the child's id and token, or no row.
-- Calls: nothing. Tables: snapshots (read).
CREATE OR REPLACE FUNCTION penstock.published_child(snapshot bigint)
RETURNS TABLE (snapshot_id bigint, snapshot_token text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.snapshot_id, s.token FROM penstock.snapshots s
    WHERE s.parent = snapshot AND s.parent > 0 AND s.published
    ORDER BY s.snapshot_id
    LIMIT 1
$$;
