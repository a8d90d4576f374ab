-- penstock.next_snapshot(snapshot)
--
-- Returns the snapshot that was saved after another one. A query that returns to an earlier snapshot, because its
-- checkpoint went back, must read exactly the same again: an epoch of it may be published, here or in another
-- database.
--
-- Parameters: snapshot.
-- Returns: the id and token of the next snapshot, or no row. If there are several, the published one, or else the
-- newest: a call that was repeated because its connection broke leaves older ones that nobody knows.
-- Calls: nothing. Tables: snapshots (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.next_snapshot(snapshot bigint)
RETURNS TABLE (snapshot_id bigint, snapshot_token text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    SELECT s.snapshot_id, s.token FROM penstock.snapshots s
    WHERE s.parent = snapshot AND s.parent > 0
    ORDER BY s.published DESC, s.snapshot_id DESC
    LIMIT 1
$$;
