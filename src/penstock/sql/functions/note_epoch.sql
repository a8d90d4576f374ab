-- penstock.note_epoch(writer, run, epoch, snapshot)
--
-- Says which snapshot an epoch reads. A task that reads knows it; the commit of what other tasks write wants it.
--
-- Parameters: writer, run, epoch - as in begin_stage; snapshot - where the epoch's reading ends.
-- Returns: nothing.
-- Calls: nothing. Tables: epoch_sources (insert).
CREATE OR REPLACE FUNCTION penstock.note_epoch(writer text, run text, epoch bigint, snapshot bigint)
RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO penstock.epoch_sources (writer, run, epoch, snapshot_id) VALUES (writer, run, epoch, snapshot)
    ON CONFLICT DO NOTHING
$$;
