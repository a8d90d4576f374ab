-- penstock.published_batch(writer)
--
-- Says whether a batch was written under a name: the ledger has one epoch of it then.
--
-- Parameters: writer - the name.
-- Returns: a row with how many messages it had and when that was, or none.
-- Calls: nothing. Tables: sink_commits (read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.published_batch(writer text)
RETURNS TABLE (messages bigint, published_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.messages, c.published_at FROM penstock.sink_commits c WHERE c.writer = published_batch.writer AND c.epoch = 0
$$;
