-- penstock.lock_stage(stage)
--
-- Locks a stage until the transaction ends, so that whoever publishes or aborts it sees what is written to it now.
--
-- Parameters: stage - its id.
-- Returns: nothing; raises object_not_in_prerequisite_state if the stage is gone, and insufficient_privilege if it belongs
-- to another user.
-- Calls: require_own_writer. Tables: stages (lock).
CREATE OR REPLACE FUNCTION penstock.lock_stage(stage bigint)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    writer text;
BEGIN
    SELECT s.writer INTO writer FROM penstock.stages s WHERE s.stage_id = stage FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stage % is gone: another attempt was published, or it was given up', stage
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM penstock.require_own_writer(writer);
END
$$;
