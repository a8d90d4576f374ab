-- penstock.publish_stages(writer, run, epoch, stage_ids, stage_messages, target, reading)
--
-- Publishes an epoch: the segments of its stages become messages of their partitions, in one transaction and exactly
-- once. Only the key of each segment is written; the payload stays where it is, unless it is so small (some 2 KB)
-- that it is stored in the row itself.
--
-- The rules, under a lock per writer: a run that was replaced by a newer one is refused. An epoch beyond the next one
-- is refused, because one was lost in between. An epoch that is already published is skipped if it reads the same
-- from its sources and has the same target, and refused otherwise. If a stage is gone or does not hold the messages
-- that its task reported, nothing is published; the same if a queue that the writer has written to was deleted since,
-- because it would be created again without its settings.
--
-- Locks, in this order: the writer, the stages, new names (sorted), partitions by id, then queues, as push_segments
-- does.
--
-- Parameters: writer, run, epoch - as in begin_stage; stage_ids - the attempts that count, in the order of their
-- messages; stage_messages - the number of messages of each; target - the queue of the sink, empty if each row names
-- its own; reading - what all sources read, as any text that is equal for equal reading. Null for either: unknown,
-- and not compared.
-- Returns: one row: 'published' or 'skipped', and the number of segments and messages of the epoch.
-- Calls: require_read_committed, use_lock_timeout, register_run, publish_segments, forget_stages, remove_stages.
-- Tables: stages (lock), staged, queues (read), sink_runs, sink_commits, epoch_sources, snapshots.
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.publish_stages(
    writer text, run text, epoch bigint, stage_ids bigint[], stage_messages bigint[],
    target text DEFAULT NULL, reading text DEFAULT NULL
)
RETURNS TABLE (outcome text, segments bigint, messages bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    run_number bigint;
    last       penstock.sink_commits;
    before     penstock.sink_commits;
    reads      bigint[];
    broken     bigint;
    queues     text[];
    gone       text;
BEGIN
    PERFORM penstock.require_read_committed('publish_stages');
    PERFORM penstock.use_lock_timeout();
    -- The class of the lock: see queue_lock_class.
    PERFORM pg_advisory_xact_lock(1885695604, hashtext(writer));
    -- Each a new statement: under the lock it sees what the last publisher of this writer did.
    run_number := penstock.register_run(writer, run);
    IF EXISTS (SELECT 1 FROM penstock.sink_runs r WHERE r.writer = writer AND r.run_number > run_number) THEN
        RAISE EXCEPTION 'run % of query % was replaced by a newer one and may not publish', run, writer
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Stop this driver: another one goes on with the same checkpoint.';
    END IF;
    reads := ARRAY(
        SELECT e.snapshot_id FROM penstock.epoch_sources e
        WHERE e.writer = writer AND e.run = run AND e.epoch = epoch
        ORDER BY e.snapshot_id
    );
    SELECT c.* INTO last FROM penstock.sink_commits c WHERE c.writer = writer ORDER BY c.epoch DESC LIMIT 1;
    IF epoch <= last.epoch THEN
        SELECT c.* INTO before FROM penstock.sink_commits c WHERE c.writer = writer AND c.epoch = epoch;
        IF before.target <> target THEN
            RAISE EXCEPTION 'epoch % of query % was published to %, and this run would write it to %',
                epoch, writer, coalesce(nullif(before.target, ''), 'the queues that its rows name'),
                coalesce(nullif(target, ''), 'the queues that its rows name')
                USING ERRCODE = '55PS1',
                      HINT = 'Two queries must not share a checkpoint, nor have copies of one. To change where a query '
                             'writes, let it finish with the old queue once, or begin a new checkpoint.';
        END IF;
        -- The same run comes twice when its connection broke and it does not know whether it has published.
        IF before.epoch IS NULL OR before.run <> run AND (
            before.sources <> reads OR before.reading <> reading OR cardinality(reads) = 0 AND before.messages <> coalesce(
                (SELECT sum(m) FROM unnest(stage_messages) m), 0
            )
        ) THEN
            RAISE EXCEPTION 'epoch % of query % is published already, and with other content', epoch, writer
                USING ERRCODE = '55PS1',
                      HINT = 'The checkpoint has gone back, behind what was published. Restore it, or go on with a '
                             'new checkpoint that starts where the published epochs end.';
        END IF;
        PERFORM penstock.remove_stages(ARRAY(
            SELECT s.stage_id FROM penstock.stages s WHERE s.writer = writer AND s.epoch <= epoch
        ));
        RETURN QUERY SELECT 'skipped', before.segments, before.messages;
        RETURN;
    END IF;
    IF epoch > last.epoch + 1 THEN
        RAISE EXCEPTION 'epoch % of query % comes after epoch %: the epochs between were not published',
            epoch, writer, last.epoch
            USING ERRCODE = '55PS1',
                  HINT = 'Was the database restored to an earlier state, or the query written elsewhere for a while? '
                         'Go on with a new checkpoint.';
    END IF;

    PERFORM 1 FROM penstock.stages s WHERE s.stage_id = ANY (stage_ids) ORDER BY s.stage_id FOR UPDATE;
    SELECT w.stage_id INTO broken
    FROM unnest(stage_ids, stage_messages) w (stage_id, wanted)
    LEFT JOIN penstock.stages s ON s.stage_id = w.stage_id AND s.writer = writer AND s.run = run AND s.epoch = epoch
    LEFT JOIN LATERAL (
        SELECT sum(c) AS held FROM penstock.staged d CROSS JOIN LATERAL unnest(d.counts) c WHERE d.stage_id = w.stage_id
    ) d ON true
    WHERE s.stage_id IS NULL OR coalesce(d.held, 0) <> w.wanted
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'stage % of epoch % of query % is gone or incomplete; nothing was published',
            broken, epoch, writer
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Abandoned stages are removed after a day: was the job suspended? Run it again.';
    END IF;

    queues := ARRAY(
        SELECT DISTINCT n FROM penstock.staged d CROSS JOIN LATERAL unnest(d.queue_names) n
        WHERE d.stage_id = ANY (stage_ids)
    );
    SELECT n INTO gone FROM unnest(last.queues) n
    WHERE n = ANY (queues) AND NOT EXISTS (SELECT 1 FROM penstock.queues q WHERE q.name = n)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'queue "%", which query % writes to, was deleted; nothing was published', gone, writer
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Create it again, with its settings, and run the query again.';
    END IF;
    SELECT p.segments, p.messages INTO segments, messages FROM penstock.publish_segments(stage_ids) p;
    PERFORM penstock.forget_stages(stage_ids);
    INSERT INTO penstock.sink_commits (writer, epoch, run, sources, segments, messages, target, reading, queues)
    VALUES (
        writer, epoch, run, reads, segments, messages, target, reading,
        ARRAY(SELECT unnest(last.queues) UNION SELECT unnest(queues) ORDER BY 1)
    );
    UPDATE penstock.snapshots s SET published = true WHERE s.snapshot_id = ANY (reads);
    -- What lost: attempts of this epoch that do not count, and all of those before it.
    PERFORM penstock.remove_stages(ARRAY(
        SELECT s.stage_id FROM penstock.stages s WHERE s.writer = writer AND s.epoch <= epoch
    ));
    DELETE FROM penstock.epoch_sources e WHERE e.writer = writer AND e.epoch <= epoch;
    -- Spark keeps a hundred batches by default.
    DELETE FROM penstock.sink_commits c WHERE c.writer = writer AND c.epoch < epoch - 1000;
    outcome := 'published';
    RETURN NEXT;
END
$$;
