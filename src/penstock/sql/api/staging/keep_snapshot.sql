-- penstock.keep_snapshot(snapshot)
--
-- Says that somebody still goes on from a snapshot, which has perhaps nothing to read for months: what nobody has asked
-- for in 90 days is removed. Writes at most once a day.
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
