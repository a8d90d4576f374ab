-- penstock.bury_staged(letters)
--
-- Makes dead letters of messages, each with a copy of the message: from the log, or, of an archived one, the copy that
-- lies with it. One that retention has dropped meanwhile, and nobody archived, leaves none.
--
-- Parameters: letters - rows of staged_dead_letters; of the same message, the first counts.
-- Returns: how many dead letters were made.
-- Calls: segment_slices, unpack. Tables: partitions (read), consumer_groups (read), dead_letters (insert).
CREATE OR REPLACE FUNCTION penstock.bury_staged(letters penstock.staged_dead_letters[])
RETURNS bigint
LANGUAGE sql
AS $$
    WITH buried AS (
        INSERT INTO penstock.dead_letters (
            queue_id, group_id, partition_id, message_offset, created_at, payload, key, headers,
            reason, attempts, first_error, last_error, consumer
        )
        SELECT
            p.queue_id, l.group_id, l.partition_id, l.message_offset, coalesce(l.created_at, m.message_time),
            CASE WHEN l.created_at IS NULL THEN m.payload ELSE l.payload END,
            coalesce(l.key, m.message_key), coalesce(l.headers, m.message_headers), l.reason, 1, l.error, l.error, g.name
        FROM (
            SELECT DISTINCT ON (u.partition_id, u.message_offset) u.*
            FROM unnest(letters) u
            ORDER BY u.partition_id, u.message_offset, u.of_source DESC, u.stage_id
        ) l
        CROSS JOIN LATERAL (
            SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = l.partition_id LIMIT 1
        ) p
        JOIN penstock.consumer_groups g ON g.group_id = l.group_id
        LEFT JOIN LATERAL (
            SELECT m.*
            FROM penstock.segment_slices(l.partition_id, l.message_offset, l.message_offset + 1) s
            CROSS JOIN LATERAL penstock.unpack(
                l.partition_id, s.base_offset, s.count, s.created_at, s.run_skip, s.run_counts, s.run_times,
                s.body_start, s.body, s.ends, s.key_start, s.keys, s.key_ends, s.header_start, s.headers, s.header_ends
            ) m
        ) m ON true
        -- Not the payload, which may be null: every message has a time.
        WHERE coalesce(l.created_at, m.message_time) IS NOT NULL
        ORDER BY l.partition_id, l.message_offset
        RETURNING 1
    )
    SELECT count(*) FROM buried
$$;
