-- penstock.trim_producers(max_rows)
--
-- Forgets what pushes answered more than an hour ago: nobody repeats them any more. Waits for nobody.
--
-- Parameters: max_rows - how many at most.
-- Returns: how many; call again while it is so many.
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
