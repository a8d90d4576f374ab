-- penstock.remove_stages(stage_ids)
--
-- Removes stages with their segments. A stage that somebody is writing to is skipped; sweep_stages removes it later.
--
-- Parameters: stage_ids.
-- Returns: the number removed.
-- Calls: forget_stages. Tables: stages (lock), segments (delete).
CREATE OR REPLACE FUNCTION penstock.remove_stages(stage_ids bigint[])
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    locked bigint[] := ARRAY(
        SELECT s.stage_id FROM penstock.stages s
        WHERE s.stage_id = ANY (stage_ids)
        ORDER BY s.stage_id
        FOR UPDATE SKIP LOCKED
    );
BEGIN
    -- A new statement: under the locks it sees every segment there is.
    DELETE FROM penstock.segments s USING unnest(locked) l (stage_id) WHERE s.partition_id = -l.stage_id;
    PERFORM penstock.forget_stages(locked);
    RETURN cardinality(locked);
END
$$;
