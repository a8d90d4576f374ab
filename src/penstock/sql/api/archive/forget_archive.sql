-- penstock.forget_archive(run)
--
-- Deletes a run that is not recorded: it can no longer be recorded, and its files are no part of the archive.
--
-- Parameters: run - its name.
-- Returns: whether a run was deleted; a recorded one stays.
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
