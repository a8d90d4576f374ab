-- penstock.note_key_use(key_ids)
--
-- Notes that API keys were used. Gateways call it once a minute at most, for all keys that were used meanwhile. A key that
-- another gateway has just noted is not written again.
--
-- Parameters: key_ids - the ids of keys.
-- Returns: nothing.
-- Calls: nothing. Tables: api_keys (update).
-- Granted to: gateway.
CREATE OR REPLACE FUNCTION penstock.note_key_use(key_ids text[])
RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE penstock.api_keys k SET last_used_at = clock_timestamp()
    WHERE k.key_id IN (
        SELECT o.key_id FROM penstock.api_keys o
        WHERE o.key_id = ANY (key_ids)
          AND (o.last_used_at IS NULL OR o.last_used_at < clock_timestamp() - interval '30 seconds')
        ORDER BY o.key_id
        FOR UPDATE SKIP LOCKED
    )
$$;
