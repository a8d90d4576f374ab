-- penstock.queue_limits(queue_names)
--
-- Returns what a client that packs messages must know of queues, which need not exist yet.
--
-- Parameters: queue_names.
-- Returns: a row per name, in the order given: max_message_bytes and spread.
-- Calls: effective_settings. Tables: queues (read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.queue_limits(queue_names text[])
RETURNS TABLE (queue_name text, max_message_bytes integer, spread integer)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT w.name, (s.settings ->> 'max_message_bytes')::integer, (s.settings ->> 'spread')::integer
    FROM unnest(queue_names) WITH ORDINALITY w (name, position)
    CROSS JOIN LATERAL (
        SELECT coalesce(
            (SELECT q.settings FROM penstock.queues q WHERE q.name = w.name), penstock.effective_settings('{}')
        ) AS settings
    ) s
    ORDER BY w.position
$$;
