-- penstock.list_dead_letters(queue_name, group_name, wanted_reason, after_id, max_rows)
--
-- Lists the dead letters of a queue, oldest first, with their messages.
--
-- Parameters: group_name and wanted_reason - null for all; after_id - where the last page ended; max_rows - the
-- largest number of rows.
-- Returns: a row per dead letter.
-- Calls: find_queue, message_id. Tables: dead_letters, consumer_groups, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_dead_letters(
    queue_name text, group_name text DEFAULT NULL, wanted_reason text DEFAULT NULL,
    after_id bigint DEFAULT 0, max_rows integer DEFAULT 100
)
RETURNS TABLE (
    dead_letter_id bigint, consumer_group text, partition_name text, message_offset bigint, message_id uuid,
    created_at timestamptz, payload bytea, key text, headers jsonb,
    reason text, attempts smallint, first_error text, last_error text, consumer text, died_at timestamptz,
    traceback text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- Looked up before and not within the query, where an empty table would keep it from being asked at all.
    queue integer := penstock.find_queue(queue_name);
BEGIN
    RETURN QUERY
    SELECT
        d.dead_letter_id, g.name, coalesce(p.name, '(deleted)'), d.message_offset,
        penstock.message_id(d.partition_id, d.message_offset, d.created_at),
        d.created_at, d.payload, d.key, d.headers,
        d.reason, d.attempts, d.first_error, d.last_error, d.consumer, d.died_at, d.traceback
    FROM penstock.dead_letters d
    JOIN penstock.consumer_groups g ON g.group_id = d.group_id
    LEFT JOIN penstock.partitions p ON p.partition_id = d.partition_id
    WHERE d.queue_id = queue
      AND (list_dead_letters.group_name IS NULL OR g.name = list_dead_letters.group_name)
      AND (wanted_reason IS NULL OR d.reason = wanted_reason)
      AND d.dead_letter_id > after_id
    ORDER BY d.dead_letter_id
    LIMIT max_rows;
END
$$;
