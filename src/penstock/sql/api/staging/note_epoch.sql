-- penstock.note_epoch(writer, run, epoch, snapshot)
--
-- Says which snapshot an epoch reads. A task that reads knows it; the commit of what other tasks write wants it.
--
-- Parameters: writer, run, epoch - as in begin_stage; snapshot - where the epoch's reading ends.
-- Returns: nothing.
-- Calls: nothing. Tables: epoch_sources (insert, delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.note_epoch(writer text, run text, epoch bigint, snapshot bigint)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Where the sink is none of ours, nobody else removes them.
    DELETE FROM penstock.epoch_sources e
    WHERE e.writer = note_epoch.writer AND e.run = note_epoch.run AND e.epoch < note_epoch.epoch - 1;
    INSERT INTO penstock.epoch_sources (writer, run, epoch, snapshot_id)
    VALUES (note_epoch.writer, note_epoch.run, note_epoch.epoch, snapshot)
    ON CONFLICT DO NOTHING;
END
$$;
