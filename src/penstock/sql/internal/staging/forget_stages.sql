-- penstock.forget_stages(stage_ids)
--
-- Deletes stages whose segments were published or removed. The caller holds their locks.
--
-- Parameters: stage_ids.
-- Returns: nothing.
-- Calls: nothing. Tables: stages, staged, staged_dead_letters (delete).
CREATE OR REPLACE FUNCTION penstock.forget_stages(stage_ids bigint[])
RETURNS void
LANGUAGE sql
AS $$
    DELETE FROM penstock.staged s WHERE s.stage_id = ANY (stage_ids);
    DELETE FROM penstock.staged_dead_letters d WHERE d.stage_id = ANY (stage_ids);
    DELETE FROM penstock.stages s WHERE s.stage_id = ANY (stage_ids);
$$;
