-- penstock.match_dead_letters(queue_name, group_name, wanted_reason, error_text, backoff, backoff_factor, max_redrives,
--                             after_id, max_rows)
--
-- Lists the dead letters that a rule with these conditions is about, and what it would do with each: it changes nothing.
--
-- Parameters: queue_name, group_name, wanted_reason - null for all; error_text - what the last error contains, in small
-- or capital letters; null for all; backoff, backoff_factor, max_redrives - as in add_rule; after_id - where the last
-- page ended; max_rows - the largest number of rows.
-- Returns: a row per dead letter, oldest first: how often it was redriven by rules, when it would be redriven, and the
-- verdict: redrive, wait, or exhausted.
-- Calls: redrives_of, policy_clock. Tables: dead_letters, consumer_groups, queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.match_dead_letters(
    queue_name text DEFAULT NULL, group_name text DEFAULT NULL, wanted_reason text DEFAULT NULL,
    error_text text DEFAULT NULL, backoff float8 DEFAULT 60, backoff_factor float8 DEFAULT 2,
    max_redrives integer DEFAULT 3, after_id bigint DEFAULT 0, max_rows integer DEFAULT 100
)
RETURNS TABLE (
    dead_letter_id bigint, queue text, consumer_group text, reason text, last_error text, died_at timestamptz,
    redrives integer, due_at timestamptz, verdict text
)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        m.dead_letter_id, m.queue, m.consumer_group, m.reason, m.last_error, m.died_at, m.redrives, w.due_at,
        CASE
            WHEN m.redrives >= max_redrives THEN 'exhausted'
            -- One that died later than now died before the clock went back.
            WHEN w.due_at <= m.at OR m.died_at > m.at + interval '1 minute' THEN 'redrive'
            ELSE 'wait'
        END
    FROM (
        SELECT
            d.dead_letter_id, q.name AS queue, g.name AS consumer_group, d.reason, d.last_error, d.died_at,
            penstock.redrives_of(d.partition_id, d.headers) AS redrives, penstock.policy_clock() AS at
        FROM penstock.dead_letters d
        JOIN penstock.consumer_groups g ON g.group_id = d.group_id
        JOIN penstock.queues q ON q.queue_id = d.queue_id
        WHERE d.dead_letter_id > after_id
          AND (match_dead_letters.queue_name IS NULL OR q.name = match_dead_letters.queue_name)
          AND (match_dead_letters.group_name IS NULL OR g.name = match_dead_letters.group_name)
          AND (wanted_reason IS NULL OR d.reason = wanted_reason)
          AND (error_text IS NULL OR strpos(lower(d.last_error), lower(error_text)) > 0)
        ORDER BY d.dead_letter_id
        LIMIT max_rows
    ) m
    CROSS JOIN LATERAL (
        SELECT CASE WHEN m.redrives < max_redrives THEN m.died_at + make_interval(
            secs => least(backoff * power(backoff_factor, least(m.redrives, 100)), 31536000)
        ) END AS due_at
    ) w
    ORDER BY m.dead_letter_id
$$;
