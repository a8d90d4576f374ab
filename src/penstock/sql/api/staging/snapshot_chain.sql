-- penstock.snapshot_chain(snapshot, snapshot_token, down_to)
--
-- Returns a snapshot and those before it.
--
-- Parameters: snapshot, snapshot_token - where to begin; down_to - the snapshot to stop before, or null to stop at
-- the first that has the positions of all partitions.
-- Returns: a row per snapshot, newest first; raises undefined_object if one is missing.
-- Calls: nothing. Tables: snapshots (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.snapshot_chain(
    snapshot bigint, snapshot_token text, down_to bigint DEFAULT NULL
)
RETURNS TABLE (
    snapshot_id bigint, depth bigint, lineage bigint, partition_ids bigint[], starts bigint[], ends bigint[],
    all_ids bigint[], all_positions bigint[]
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next_id bigint := snapshot;
    seen    penstock.snapshots;
BEGIN
    WHILE next_id IS DISTINCT FROM down_to LOOP
        SELECT s.* INTO seen FROM penstock.snapshots s WHERE s.snapshot_id = next_id;
        IF NOT FOUND OR next_id = snapshot AND seen.token IS DISTINCT FROM snapshot_token THEN
            RAISE EXCEPTION 'there is no snapshot % on the way from % back to %', next_id, snapshot, down_to
                USING ERRCODE = '55PS1',
                      HINT = 'The checkpoint belongs to another database, is more than a thousand batches old, or its '
                             'query has not run for 90 days. '
                             'Start with a new checkpoint.';
        END IF;
        snapshot_id := seen.snapshot_id;
        depth := seen.depth;
        lineage := seen.lineage;
        partition_ids := seen.partition_ids;
        starts := seen.starts;
        ends := seen.ends;
        all_ids := seen.all_ids;
        all_positions := seen.all_positions;
        RETURN NEXT;
        EXIT WHEN down_to IS NULL AND seen.all_ids IS NOT NULL;
        next_id := seen.parent;
    END LOOP;
END
$$;
