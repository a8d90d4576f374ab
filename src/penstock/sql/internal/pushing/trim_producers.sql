-- penstock.trim_producers(max_rows)
--
-- Deletes answers to pushes that are more than an hour old: they are not repeated any more. Waits for nobody.
--
-- Parameters: max_rows - the largest number.
-- Returns: the number deleted; call it again while it is max_rows.
-- Calls: nothing. Tables: producers (delete).
CREATE OR REPLACE FUNCTION penstock.trim_producers(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    trimmed integer;
BEGIN
    DELETE FROM penstock.producers d
    WHERE d.ctid = ANY (ARRAY(
        SELECT d.ctid FROM penstock.producers d
        WHERE d.pushed_at < clock_timestamp() - interval '1 hour'
        ORDER BY d.pushed_at
        LIMIT max_rows
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS trimmed = ROW_COUNT;
    RETURN trimmed;
END
$$;
