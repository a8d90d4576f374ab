-- penstock.forget_archive(run)
--
-- Forgets a run that was given up, or gives up one that is not recorded: its files are removed.
--
-- Parameters: run - its name.
-- Returns: whether there was one to forget; a recorded one stays.
-- Calls: nothing. Tables: archives (delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.forget_archive(run text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM penstock.archives a WHERE a.run = forget_archive.run AND a.recorded_at IS NULL;
    RETURN FOUND;
END
$$;
