-- penstock.begin_stage(writer, run, epoch)
--
-- Begins a stage: room for what one attempt of one task writes, which nobody reads before it is published. The commit
-- waits for the disk, here and in stage_segments: a database that crashes must not take away what a task was told that it
-- has, or the epoch could not be published.
--
-- Parameters: writer - the query's id, or that of a batch write; run - the id of this start of it; epoch - the number
-- of the batch.
-- Returns: the stage's id.
-- Calls: register_run. Tables: stages (insert).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.begin_stage(writer text, run text, epoch bigint)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    begun bigint;
BEGIN
    IF num_nonnulls(writer, run, epoch) < 3 OR epoch < 0 THEN
        RAISE EXCEPTION 'a stage needs a writer, a run, and an epoch from 0 on'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.register_run(writer, run);
    INSERT INTO penstock.stages (writer, run, epoch) VALUES (begin_stage.writer, begin_stage.run, begin_stage.epoch)
    RETURNING stage_id INTO begun;
    RETURN begun;
END
$$;
