-- penstock.offsets_at(partition_ids, moment)
--
-- Finds a time in each of some partitions.
--
-- Parameters: partition_ids, moment.
-- Returns: for each, in the order given, the first offset whose message is not older than `moment`.
-- Calls: offset_at. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.offsets_at(partition_ids bigint[], moment timestamptz)
RETURNS bigint[]
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    -- Staged segments have negative partition ids and are not visible here.
    SELECT array_agg(
        CASE WHEN w.partition_id > 0 THEN penstock.offset_at(w.partition_id, moment) ELSE 0 END ORDER BY w.position
    )
    FROM unnest(partition_ids) WITH ORDINALITY w (partition_id, position)
$$;
