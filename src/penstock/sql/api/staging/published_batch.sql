-- penstock.published_batch(writer)
--
-- Returns whether a batch was published under a name.
--
-- Parameters: writer - the name.
-- Returns: a row with the number of messages and the time, or none.
-- Calls: nothing. Tables: sink_commits (read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.published_batch(writer text)
RETURNS TABLE (messages bigint, published_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.messages, c.published_at FROM penstock.sink_commits c WHERE c.writer = published_batch.writer AND c.epoch = 0
$$;
