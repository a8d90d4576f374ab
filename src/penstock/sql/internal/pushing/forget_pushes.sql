-- penstock.forget_pushes(targets)
--
-- Deletes the scheduled messages, the dedupe ids and the unique keys of partitions. The caller holds their locks.
--
-- Parameters: targets - partition ids.
-- Returns: the number of scheduled messages deleted.
-- Calls: nothing. Tables: scheduled, dedupe_ids, unique_keys, unique_moves (delete), partitions (read).
CREATE OR REPLACE FUNCTION penstock.forget_pushes(targets bigint[])
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    messages bigint;
BEGIN
    WITH gone AS (
        DELETE FROM penstock.scheduled s
        WHERE s.queue_id IN (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = ANY (targets))
          AND s.partition_id = ANY (targets)
        RETURNING s.count
    )
    SELECT coalesce(sum(g.count), 0) INTO messages FROM gone g;
    DELETE FROM penstock.dedupe_ids k WHERE k.partition_id = ANY (targets);
    DELETE FROM penstock.unique_keys k WHERE k.partition_id = ANY (targets);
    DELETE FROM penstock.unique_moves m WHERE m.partition_id = ANY (targets);
    RETURN messages;
END
$$;
