-- penstock.abort_stages(writer, run, stage_ids)
--
-- Removes stages that were not published, if they belong to this run of this writer.
--
-- Parameters: writer, run - as in begin_stage; stage_ids.
-- Returns: the number removed; raises insufficient_privilege if the writer belongs to another user.
-- Calls: require_own_writer, remove_stages. Tables: stages (read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.abort_stages(writer text, run text, stage_ids bigint[])
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.require_own_writer(abort_stages.writer);
    RETURN penstock.remove_stages(ARRAY(
        SELECT s.stage_id FROM penstock.stages s
        WHERE s.stage_id = ANY (stage_ids) AND s.writer = abort_stages.writer AND s.run = abort_stages.run
    ));
END
$$;
