-- penstock.take_dead_letters(queue_name, group_name, wanted_reason, wanted_ids, max_rows)
--
-- Deletes a chunk of dead letters, oldest first, of at most 64 MiB, or one. Concurrent callers get different ones.
--
-- Parameters: group_name, wanted_reason, wanted_ids - null for all; max_rows - the largest number.
-- Returns: the deleted rows.
-- Calls: find_queue. Tables: dead_letters (delete), consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.take_dead_letters(
    queue_name text, group_name text, wanted_reason text, wanted_ids bigint[], max_rows integer
)
RETURNS SETOF penstock.dead_letters
LANGUAGE plpgsql
AS $$
DECLARE
    -- Looked up before and not within the query, where an empty table would keep it from being asked at all.
    queue integer := penstock.find_queue(queue_name);
BEGIN
    RETURN QUERY
    -- As an array, which is made once: joined to the subquery, a plan may run it again and pass over what is deleted.
    DELETE FROM penstock.dead_letters d
    WHERE d.dead_letter_id = ANY (ARRAY(
        SELECT l.dead_letter_id
        FROM (
            SELECT l.dead_letter_id, sum(l.bytes) OVER running AS bytes, row_number() OVER running AS nth
            FROM (
                SELECT d.dead_letter_id, coalesce(octet_length(d.payload), 0) AS bytes
                FROM penstock.dead_letters d
                JOIN penstock.consumer_groups g ON g.group_id = d.group_id
                WHERE d.queue_id = queue
                  AND (take_dead_letters.group_name IS NULL OR g.name = take_dead_letters.group_name)
                  AND (wanted_reason IS NULL OR d.reason = wanted_reason)
                  AND (wanted_ids IS NULL OR d.dead_letter_id = ANY (wanted_ids))
                ORDER BY d.dead_letter_id
                LIMIT max_rows
                FOR UPDATE OF d SKIP LOCKED
            ) l
            WINDOW running AS (ORDER BY l.dead_letter_id)
        ) l
        -- No more than can be held in memory at once, but always one.
        WHERE l.bytes <= 67108864 OR l.nth = 1
    ))
    RETURNING d.*;
END
$$;
