-- penstock.begin_stage(writer, run, epoch)
--
-- Begins a stage, which holds what one attempt of one task writes until it is published. This commit and that of
-- stage_segments wait for the disk: if a crash of the database lost what a task has staged, its epoch could not be
-- published.
--
-- Parameters: writer - the id of the query, or of a batch write; run - the id of this start of it; epoch - the number
-- of the batch.
-- Returns: the id of the stage.
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
        RAISE EXCEPTION 'a stage requires a writer, a run, and an epoch of 0 or above'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.register_run(writer, run);
    INSERT INTO penstock.stages (writer, run, epoch) VALUES (begin_stage.writer, begin_stage.run, begin_stage.epoch)
    RETURNING stage_id INTO begun;
    RETURN begun;
END
$$;
