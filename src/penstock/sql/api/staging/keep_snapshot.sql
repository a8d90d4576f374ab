-- penstock.keep_snapshot(snapshot)
--
-- Marks a snapshot as used. Snapshots that were not used for 90 days are removed, and a query may have nothing to
-- read for months. Writes at most once a day.
--
-- Parameters: snapshot.
-- Returns: nothing.
-- Calls: nothing. Tables: snapshots (update).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.keep_snapshot(snapshot bigint)
RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE penstock.snapshots s SET created_at = clock_timestamp()
    WHERE s.snapshot_id = snapshot AND s.created_at < clock_timestamp() - interval '1 day'
$$;
