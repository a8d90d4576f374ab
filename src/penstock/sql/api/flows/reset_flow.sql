-- penstock.reset_flow(flow_name, new_checkpoint)
--
-- Lets a flow start with a new checkpoint where its last published epoch ended: first the position of its group is
-- set to that place. The state that Spark kept in the old checkpoint, for aggregations and joins, is lost.
--
-- Parameters: new_checkpoint - the location of the new one.
-- Returns: the number of busy partitions. Call it again until it returns 0; only then is the flow reset.
-- Calls: snapshot_chain, advance_reader. Tables: flows (update), sink_commits, snapshots, partitions, queues (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.reset_flow(flow_name text, new_checkpoint text)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    flow   penstock.flows;
    newest record;
    waited bigint := 0;
    here   bigint;
BEGIN
    SELECT f.* INTO flow FROM penstock.flows f WHERE f.name = reset_flow.flow_name FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no flow "%"', reset_flow.flow_name
            USING ERRCODE = 'undefined_object', HINT = '"penstock flows" lists those there are.';
    END IF;
    -- Each source of the flow is a lineage of snapshots; where one ends, the source has been read to.
    FOR newest IN
        SELECT DISTINCT ON (s.lineage) s.snapshot_id, s.token
        FROM penstock.sink_commits c
        CROSS JOIN LATERAL unnest(c.sources) u (snapshot_id)
        JOIN penstock.snapshots s ON s.snapshot_id = u.snapshot_id
        WHERE c.writer = flow.writer
        ORDER BY s.lineage, s.depth DESC
    LOOP
        SELECT coalesce(sum(a.busy), 0) INTO here
        FROM (
            SELECT q.name AS queue_name, array_agg(r.partition_id) AS ids, array_agg(r.position) AS positions
            FROM (
                -- Newer rows of the chain say more than older ones.
                SELECT DISTINCT ON (w.partition_id) w.partition_id, w.position
                FROM penstock.snapshot_chain(newest.snapshot_id, newest.token) c
                CROSS JOIN LATERAL (
                    SELECT u.partition_id, u.position, 1 AS rank
                    FROM unnest(c.partition_ids, c.ends) u (partition_id, position)
                    UNION ALL
                    SELECT u.partition_id, u.position, 2 FROM unnest(c.all_ids, c.all_positions) u (partition_id, position)
                ) w
                ORDER BY w.partition_id, c.depth DESC, w.rank
            ) r
            JOIN penstock.partitions p ON p.partition_id = r.partition_id
            JOIN penstock.queues q ON q.queue_id = p.queue_id
            GROUP BY q.name
        ) r
        CROSS JOIN LATERAL penstock.advance_reader(r.queue_name, reset_flow.flow_name, r.ids, r.positions) a;
        waited := waited + here;
    END LOOP;
    IF waited = 0 THEN
        UPDATE penstock.flows f SET writer = NULL, shape = '', checkpoint = new_checkpoint
        WHERE f.name = reset_flow.flow_name;
    END IF;
    RETURN waited;
END
$$;
