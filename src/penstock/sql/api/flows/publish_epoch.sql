-- penstock.publish_epoch(group_name, writer, run, epoch, stage_ids, stage_messages, target, reading)
--
-- Publishes an epoch of a flow in one transaction: the messages that its tasks have staged, the dead letters of its
-- tasks and sources, and the positions of its group. The rules are those of publish_stages. In addition, if a flow
-- has the group's name, only the query of the flow's own checkpoint may publish. The position in a partition that
-- somebody is pushing to is reported with the next call of advance_reader, because waiting for it here could
-- deadlock.
--
-- Parameters: group_name - the flow; the others as in publish_stages.
-- Returns: one row: the answer of publish_stages, and the number of dead letters.
-- Calls: publish_stages, bury_staged, advance_reader. Tables: flows (update), epoch_sources, snapshots, partitions,
-- queues, stages (read), staged_dead_letters (update, delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.publish_epoch(
    group_name text, writer text, run text, epoch bigint, stage_ids bigint[], stage_messages bigint[],
    target text DEFAULT NULL, reading text DEFAULT NULL
)
RETURNS TABLE (outcome text, segments bigint, messages bigint, dead_letters bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    owner   text;
    reads   bigint[];
    letters bigint[];
BEGIN
    UPDATE penstock.flows f SET writer = writer WHERE f.name = group_name AND f.writer IS NULL;
    owner := (SELECT f.writer FROM penstock.flows f WHERE f.name = group_name);
    IF owner <> writer THEN
        RAISE EXCEPTION 'flow "%" belongs to query %, so query % may not publish for it', group_name, owner, writer
            USING ERRCODE = '55PS1',
                  HINT = 'The checkpoint is another one, or is gone. Use the right one, or start again where the flow '
                         'stands: penstock run --reset.';
    END IF;
    -- Before publish_stages, which removes both.
    reads := ARRAY(
        SELECT e.snapshot_id FROM penstock.epoch_sources e
        WHERE e.writer = writer AND e.run = run AND e.epoch = epoch
    );
    -- Out of the way of publish_stages, which removes what lies with the stages. Not as an array: they may have copies.
    WITH moved AS (
        UPDATE penstock.staged_dead_letters d SET stage_id = -d.stage_id
        FROM penstock.stages s
        WHERE s.writer = writer AND s.epoch = epoch AND s.run = run AND d.stage_id = s.stage_id
          AND (d.of_source OR s.stage_id = ANY (stage_ids))
        RETURNING d.stage_id
    )
    SELECT coalesce(array_agg(DISTINCT m.stage_id), '{}') INTO letters FROM moved m;
    SELECT p.* INTO outcome, segments, messages
    FROM penstock.publish_stages(writer, run, epoch, stage_ids, stage_messages, target, reading) p;
    dead_letters := 0;
    IF outcome = 'published' THEN
        dead_letters := penstock.bury_staged(letters);
        PERFORM penstock.advance_reader(r.queue_name, group_name, r.ids, r.ends)
        FROM (
            SELECT q.name AS queue_name, array_agg(u.partition_id) AS ids, array_agg(u.stop) AS ends
            FROM penstock.snapshots s
            CROSS JOIN LATERAL unnest(s.partition_ids, s.ends) u (partition_id, stop)
            CROSS JOIN LATERAL (
                SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = u.partition_id LIMIT 1
            ) p
            JOIN penstock.queues q ON q.queue_id = p.queue_id
            WHERE s.snapshot_id = ANY (reads)
            GROUP BY q.name
        ) r;
    END IF;
    DELETE FROM penstock.staged_dead_letters d WHERE d.stage_id = ANY (letters);
    RETURN NEXT;
END
$$;
