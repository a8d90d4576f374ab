-- penstock.save_snapshot(parent, parent_token, partition_ids, starts, ends, all_ids, all_positions)
--
-- Saves how far a batch of a streaming query reads, under an id that fits into Spark's checkpoint whatever the number
-- of partitions. Snapshots more than a thousand batches old are removed; Spark's checkpoint does not reach back so
-- far.
--
-- Parameters: parent, parent_token - the snapshot at which the batch begins, 0 for the first; partition_ids, starts,
-- ends - what it reads; all_ids, all_positions - the positions of all partitions after it, or null.
-- Returns: the id and token of the snapshot, and its lineage: the id of the query's first snapshot.
-- Calls: nothing. Tables: snapshots (insert, delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.save_snapshot(
    parent bigint, parent_token text, partition_ids bigint[], starts bigint[], ends bigint[],
    all_ids bigint[] DEFAULT NULL, all_positions bigint[] DEFAULT NULL
)
RETURNS TABLE (snapshot_id bigint, snapshot_token text, lineage bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    before record;
    saved  bigint := nextval(pg_get_serial_sequence('penstock.snapshots', 'snapshot_id'));
BEGIN
    IF (cardinality(partition_ids) = ALL (ARRAY[cardinality(starts), cardinality(ends)])) IS NOT TRUE
       OR cardinality(all_ids) <> cardinality(all_positions)
       OR parent = 0 AND all_ids IS NULL
    THEN
        RAISE EXCEPTION 'a snapshot needs arrays of one length, and all positions if it is the first'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF parent <> 0 THEN
        SELECT s.lineage, s.depth INTO before FROM penstock.snapshots s
        WHERE s.snapshot_id = parent AND s.token = parent_token;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no snapshot % with token %', parent, parent_token
                USING ERRCODE = '55PS1',
                      HINT = 'The checkpoint belongs to another database. Start with a new checkpoint.';
        END IF;
        DELETE FROM penstock.snapshots s WHERE s.lineage = before.lineage AND s.depth < before.depth - 1000;
    ELSE
        SELECT saved AS lineage, -1::bigint AS depth INTO before;
    END IF;
    INSERT INTO penstock.snapshots (
        snapshot_id, parent, lineage, depth, partition_ids, starts, ends, all_ids, all_positions
    ) OVERRIDING SYSTEM VALUE
    VALUES (
        saved, parent, before.lineage, before.depth + 1, partition_ids, starts, ends, all_ids, all_positions
    )
    RETURNING saved, token, before.lineage INTO snapshot_id, snapshot_token, lineage;
    RETURN NEXT;
END
$$;
