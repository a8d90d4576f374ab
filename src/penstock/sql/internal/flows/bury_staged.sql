-- penstock.bury_staged(stage_ids)
--
-- Makes dead letters of staged messages, each with a copy of the message: the one that a task staged with it, or else
-- the one in the log. A message that retention has dropped, and of which there is no copy, leaves no dead letter.
--
-- Parameters: stage_ids - whose rows of staged_dead_letters; if a message is staged several times, the first one
-- counts, with all the rows that it failed with.
-- Returns: the number of dead letters.
-- Calls: segment_slices, unpack. Tables: staged_dead_letters, partitions, consumer_groups (read), dead_letters
-- (insert).
CREATE OR REPLACE FUNCTION penstock.bury_staged(stage_ids bigint[])
RETURNS bigint
LANGUAGE sql
AS $$
    WITH buried AS (
        INSERT INTO penstock.dead_letters (
            queue_id, group_id, partition_id, message_offset, created_at, payload, key, headers,
            reason, attempts, first_error, last_error, consumer, row_ids
        )
        SELECT
            p.queue_id, l.group_id, l.partition_id, l.message_offset, coalesce(l.created_at, m.message_time),
            CASE WHEN l.created_at IS NULL THEN m.payload ELSE l.payload END,
            CASE WHEN l.created_at IS NULL THEN m.message_key ELSE l.key END,
            CASE WHEN l.created_at IS NULL THEN m.message_headers ELSE l.headers END,
            l.reason, 1, l.error, l.error, g.name, w.row_ids
        FROM (
            SELECT DISTINCT ON (d.partition_id, d.message_offset) d.*
            FROM penstock.staged_dead_letters d
            WHERE d.stage_id = ANY (bury_staged.stage_ids)
            ORDER BY d.partition_id, d.message_offset, d.of_source DESC, abs(d.stage_id)
        ) l
        CROSS JOIN LATERAL (
            SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = l.partition_id LIMIT 1
        ) p
        JOIN penstock.consumer_groups g ON g.group_id = l.group_id
        CROSS JOIN LATERAL (
            SELECT array_agg(DISTINCT r) AS row_ids
            FROM penstock.staged_dead_letters d
            CROSS JOIN LATERAL unnest(d.row_ids) r
            WHERE d.stage_id = ANY (bury_staged.stage_ids) AND d.partition_id = l.partition_id
              AND d.message_offset = l.message_offset
        ) w
        LEFT JOIN LATERAL (
            SELECT m.*
            FROM penstock.segment_slices(l.partition_id, l.message_offset, l.message_offset + 1) s
            CROSS JOIN LATERAL penstock.unpack(
                l.partition_id, s.base_offset, s.count, s.created_at, s.run_skip, s.run_counts, s.run_times,
                s.body_start, s.body, s.ends, s.key_start, s.keys, s.key_ends, s.header_start, s.headers, s.header_ends
            ) m
            WHERE l.created_at IS NULL
        ) m ON true
        -- Not the payload, which may be null: every message has a time.
        WHERE coalesce(l.created_at, m.message_time) IS NOT NULL
        ORDER BY l.partition_id, l.message_offset
        RETURNING 1
    )
    SELECT count(*) FROM buried
$$;
