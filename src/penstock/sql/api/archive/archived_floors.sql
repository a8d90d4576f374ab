-- penstock.archived_floors(partition_ids, floors)
--
-- Returns the offset from which each partition can be read without a gap if its archive is read too.
--
-- Parameters: parallel arrays; floors - the floor of each partition's log.
-- Returns: for each partition, in the order given, the first offset of its archive where the archive reaches up to
-- the log, else the floor.
-- Calls: nothing. Tables: archives, archived (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.archived_floors(partition_ids bigint[], floors bigint[])
RETURNS bigint[]
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM penstock.archives) THEN
        RETURN floors;
    END IF;
    RETURN (
        SELECT array_agg(least(w.floor, a.unbroken_from) ORDER BY w.position)
        FROM unnest(partition_ids, floors) WITH ORDINALITY w (partition_id, floor, position)
        LEFT JOIN LATERAL (
            SELECT CASE WHEN a.stop_offset >= w.floor THEN a.unbroken_from END AS unbroken_from
            FROM penstock.archived a
            WHERE a.partition_id = w.partition_id
            ORDER BY a.start_offset DESC
            LIMIT 1
        ) a ON true
    );
END
$$;
