-- penstock.sweep_stages(older_than)
--
-- Removes what Spark jobs left behind: stages that were not written to for older_than, old rows of published epochs,
-- of the sources of epochs and of poison messages, and the snapshots of queries that have not run for 90 days. A job
-- that takes longer than this between writing and committing fails when it commits, and publishes nothing. The newest
-- epoch of a streaming query is kept. Maintenance calls it.
--
-- Parameters: older_than - the age of a stage.
-- Returns: the number of stages removed.
-- Calls: remove_stages. Tables: stages, staged (read), sink_commits, sink_runs, epoch_sources, poison, snapshots,
-- deleted_partitions (delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.sweep_stages(older_than interval DEFAULT interval '1 day')
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    removed integer;
BEGIN
    removed := penstock.remove_stages(ARRAY(
        SELECT s.stage_id FROM penstock.stages s
        WHERE greatest(s.created_at, (SELECT max(d.staged_at) FROM penstock.staged d WHERE d.stage_id = s.stage_id))
            < clock_timestamp() - older_than
        ORDER BY s.stage_id
        LIMIT 1000
    ));
    DELETE FROM penstock.epoch_sources e WHERE e.noted_at < clock_timestamp() - greatest(older_than, interval '1 day');
    -- A batch write has one epoch, and nobody comes back for it after so long.
    WITH gone AS (
        DELETE FROM penstock.sink_commits c
        WHERE c.published_at < clock_timestamp() - interval '30 days' AND c.writer = c.run
        RETURNING c.writer
    )
    DELETE FROM penstock.sink_runs r USING gone g WHERE r.writer = g.writer;
    -- A query that runs keeps its newest one (keep_snapshot), also while there is nothing to read.
    DELETE FROM penstock.snapshots s
    USING (
        SELECT n.lineage FROM penstock.snapshots n
        GROUP BY n.lineage
        HAVING max(n.created_at) < clock_timestamp() - interval '90 days'
        LIMIT 100
    ) old
    WHERE s.lineage = old.lineage;
    -- Its dead letters were published long ago, and no checkpoint goes back so far.
    DELETE FROM penstock.poison p WHERE p.found_at < clock_timestamp() - interval '30 days';
    DELETE FROM penstock.deleted_partitions d WHERE d.deleted_at < clock_timestamp() - interval '30 days';
    RETURN removed;
END
$$;
