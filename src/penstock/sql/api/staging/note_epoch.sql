-- penstock.note_epoch(writer, run, epoch, snapshot)
--
-- Records which snapshot an epoch reads. The tasks that read know it; the commit of the tasks that write needs it.
--
-- Parameters: writer, run, epoch - as in begin_stage; snapshot - where the epoch ends.
-- Returns: nothing.
-- Calls: nothing. Tables: epoch_sources (insert, delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.note_epoch(writer text, run text, epoch bigint, snapshot bigint)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- With a sink of another kind nobody else removes them.
    DELETE FROM penstock.epoch_sources e
    WHERE e.writer = note_epoch.writer AND e.run = note_epoch.run AND e.epoch < note_epoch.epoch - 1;
    INSERT INTO penstock.epoch_sources (writer, run, epoch, snapshot_id)
    VALUES (note_epoch.writer, note_epoch.run, note_epoch.epoch, snapshot)
    ON CONFLICT DO NOTHING;
END
$$;
