-- penstock.queue_spread(queue_name)
--
-- Returns the number of partitions over which a queue spreads pushes that name none.
--
-- Parameters: queue_name - it need not exist yet.
-- Returns: the setting; its default for a queue that does not exist.
-- Calls: effective_settings. Tables: queues (read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.queue_spread(queue_name text)
RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (coalesce(
        (SELECT q.settings FROM penstock.queues q WHERE q.name = queue_name), penstock.effective_settings('{}')
    ) ->> 'spread')::integer
$$;
