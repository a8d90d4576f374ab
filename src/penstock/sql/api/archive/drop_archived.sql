-- penstock.drop_archived(queue_name, partition_names, after_partition, max_partitions)
--
-- Drops archived segments of a queue, whatever their age, in a chunk of partitions. Messages that a group has not
-- read stay, unless the queue's retention_rule is drop_and_count. Call it again with the returned position until that
-- is null.
--
-- Parameters: partition_names - null for all; after_partition - where the last call ended, 0 to begin; max_partitions
-- - the number of partitions to visit.
-- Returns: the number of segments and messages dropped, and the position for the next call.
-- Calls: find_queue, find_partition, archived_to, consumed_to, drop_below. Tables: queues, partitions (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.drop_archived(
    queue_name text, partition_names text[] DEFAULT NULL, after_partition bigint DEFAULT 0,
    max_partitions integer DEFAULT 1000
)
RETURNS TABLE (dropped_segments bigint, dropped_messages bigint, next_partition bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    queue   integer := penstock.find_queue(queue_name);
    wanted  bigint[] := ARRAY(SELECT penstock.find_partition(queue_name, n) FROM unnest(partition_names) n);
    keeps   boolean := (
        SELECT q.settings ->> 'retention_rule' = 'keep_until_consumed' FROM penstock.queues q WHERE q.queue_id = queue
    );
    visited integer := 0;
    place   record;
    dropped record;
BEGIN
    IF (max_partitions > 0 AND after_partition >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'max_partitions is % and must be above 0; after_partition is % and must be 0 or above',
            max_partitions, after_partition
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    dropped_segments := 0;
    dropped_messages := 0;
    FOR place IN
        SELECT p.partition_id FROM penstock.partitions p
        WHERE p.queue_id = queue AND p.partition_id > after_partition
          AND (partition_names IS NULL OR p.partition_id = ANY (wanted))
        ORDER BY p.partition_id
        LIMIT max_partitions
    LOOP
        visited := visited + 1;
        next_partition := place.partition_id;
        SELECT * INTO dropped FROM penstock.drop_below(
            place.partition_id,
            least(
                penstock.archived_to(place.partition_id),
                CASE WHEN keeps THEN penstock.consumed_to(place.partition_id) END
            ),
            NULL
        );
        dropped_segments := dropped_segments + dropped.dropped_segments;
        dropped_messages := dropped_messages + dropped.dropped_messages;
    END LOOP;
    IF visited < max_partitions THEN
        next_partition := NULL;
    END IF;
    RETURN NEXT;
END
$$;
