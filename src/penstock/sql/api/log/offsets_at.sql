-- penstock.offsets_at(partition_ids, moment)
--
-- Finds where a moment lies in each of some partitions.
--
-- Parameters: partition_ids, moment.
-- Returns: for each, in the order given, the first offset whose message is not older.
-- Calls: offset_at. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.offsets_at(partition_ids bigint[], moment timestamptz)
RETURNS bigint[]
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    -- What is staged lies below 0, and is nobody's to ask about.
    SELECT array_agg(
        CASE WHEN w.partition_id > 0 THEN penstock.offset_at(w.partition_id, moment) ELSE 0 END ORDER BY w.position
    )
    FROM unnest(partition_ids) WITH ORDINALITY w (partition_id, position)
$$;
