-- penstock.source_heads(queue_names, queue_pattern, with_floors, reader, skip_missing)
--
-- Returns the heads of all partitions of some queues, with one or two index probes for each: a reader of whole queues
-- calls it to find new messages.
--
-- Parameters: queue_names - queues that must exist; or queue_pattern - a regular expression that matches the whole
-- name of a queue; with_floors - whether to return floors too; reader - a group whose private lanes are included;
-- skip_missing - whether a queue that does not exist is skipped instead of being an error.
-- Returns: one row of parallel arrays: partition ids, floors (0 unless with_floors), heads.
-- Calls: find_queue, partition_span, newest_segment. Tables: queues, consumer_groups, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.source_heads(
    queue_names text[], queue_pattern text DEFAULT NULL, with_floors boolean DEFAULT false, reader text DEFAULT NULL,
    skip_missing boolean DEFAULT false
)
RETURNS TABLE (partition_ids bigint[], floors bigint[], heads bigint[])
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    wanted integer[] := CASE
        WHEN queue_pattern IS NULL AND skip_missing THEN
            ARRAY(SELECT q.queue_id FROM penstock.queues q WHERE q.name = ANY (queue_names))
        WHEN queue_pattern IS NULL THEN ARRAY(SELECT DISTINCT penstock.find_queue(n) FROM unnest(queue_names) n)
        ELSE ARRAY(SELECT q.queue_id FROM penstock.queues q WHERE q.name ~ ('^(?:' || queue_pattern || ')$'))
    END;
    groups integer[] := ARRAY(
        SELECT g.group_id FROM penstock.consumer_groups g WHERE g.queue_id = ANY (wanted) AND g.name = reader
    );
BEGIN
    IF with_floors THEN
        RETURN QUERY
        SELECT array_agg(p.partition_id), array_agg(s.floor_offset), array_agg(s.head_offset)
        FROM unnest(wanted) w (queue_id)
        JOIN penstock.partitions p ON p.queue_id = w.queue_id AND (p.lane_of IS NULL OR p.lane_of = ANY (groups))
        CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT array_agg(p.partition_id), array_agg(0::bigint), array_agg(coalesce(s.head_offset, 0))
    FROM unnest(wanted) w (queue_id)
    JOIN penstock.partitions p ON p.queue_id = w.queue_id AND (p.lane_of IS NULL OR p.lane_of = ANY (groups))
    LEFT JOIN LATERAL penstock.newest_segment(p.partition_id) s ON true;
END
$$;
