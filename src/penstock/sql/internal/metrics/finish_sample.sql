-- penstock.finish_sample(now_at)
--
-- Makes the sample that was taken the newest one of every group, and adds it to the series: at most once a minute for
-- each group, and only where something has changed. Also counts new dead letters, of which clients do not know all:
-- those of expired leases are made by the sweep. What somebody is just deleting is left out, and nobody waits for it.
--
-- Parameters: now_at - the time.
-- Returns: nothing.
-- Calls: nothing. Tables: sampled (delete), group_samples (insert, update), queue_metrics (insert), sample_marks (insert,
-- update), consumer_groups, queues (lock), dead_letters (read).
CREATE OR REPLACE FUNCTION penstock.finish_sample(now_at timestamptz)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    seen bigint := coalesce((SELECT m.dead_letter_id FROM penstock.sample_marks m), 0);
    last bigint;
BEGIN
    WITH found AS (
        SELECT
            g.group_id, g.queue_id, g.name, coalesce(s.lag, 0) AS lag, coalesce(s.depth, 0) AS depth,
            coalesce(s.ready, 0) AS ready, coalesce(s.claimed, 0) AS claimed, coalesce(s.waiting, 0) AS waiting,
            s.oldest_at, s.oldest_partition, s.oldest_offset
        FROM penstock.consumer_groups g
        LEFT JOIN penstock.sampled s ON s.group_id = g.group_id
        LEFT JOIN penstock.group_samples o ON o.group_id = g.group_id
        WHERE (s.group_id IS NOT NULL OR (o.lag, o.ready, o.claimed, o.waiting) <> (0, 0, 0, 0))
          -- Where nothing has changed nothing is written, and hence nothing locked.
          AND (
              (o.lag, o.depth, o.ready, o.claimed, o.waiting, o.oldest_at) IS DISTINCT FROM (
                  coalesce(s.lag, 0), coalesce(s.depth, 0), coalesce(s.ready, 0), coalesce(s.claimed, 0),
                  coalesce(s.waiting, 0), s.oldest_at
              )
              OR o.sampled_at NOT BETWEEN now_at - interval '1 minute' AND now_at
          )
        -- A row of a group that is gone when it is written would violate its foreign key.
        FOR KEY SHARE OF g SKIP LOCKED
    ), written AS (
        INSERT INTO penstock.group_samples AS o (
            group_id, sampled_at, lag, depth, ready, claimed, waiting, oldest_at, oldest_partition, oldest_offset,
            measured_at, times, lags, depths
        )
        SELECT
            f.group_id, now_at, f.lag, f.depth, f.ready, f.claimed, f.waiting, f.oldest_at, f.oldest_partition,
            f.oldest_offset, now_at, ARRAY[now_at], ARRAY[f.lag], ARRAY[f.depth]
        FROM found f
        ORDER BY f.group_id
        ON CONFLICT (group_id) DO UPDATE SET
            sampled_at = excluded.sampled_at, lag = excluded.lag, depth = excluded.depth, ready = excluded.ready,
            claimed = excluded.claimed, waiting = excluded.waiting, oldest_at = excluded.oldest_at,
            oldest_partition = excluded.oldest_partition, oldest_offset = excluded.oldest_offset,
            measured_at = CASE
                WHEN o.measured_at BETWEEN now_at - interval '55 seconds' AND now_at THEN o.measured_at ELSE now_at
            END,
            -- A time that lies ahead was written before the clock went back.
            times = CASE
                WHEN o.times[cardinality(o.times)] BETWEEN now_at - interval '55 seconds' AND now_at THEN o.times
                ELSE o.times[greatest(1, cardinality(o.times) - 62):] || now_at
            END,
            lags = CASE
                WHEN o.times[cardinality(o.times)] BETWEEN now_at - interval '55 seconds' AND now_at THEN o.lags
                ELSE o.lags[greatest(1, cardinality(o.times) - 62):] || excluded.lag
            END,
            depths = CASE
                WHEN o.times[cardinality(o.times)] BETWEEN now_at - interval '55 seconds' AND now_at THEN o.depths
                ELSE o.depths[greatest(1, cardinality(o.times) - 62):] || excluded.depth
            END
        RETURNING o.group_id, o.lag, o.depth, o.claimed, o.oldest_at, o.measured_at
    )
    INSERT INTO penstock.queue_metrics (queue_name, metric_name, metric_value, "timestamp", labels)
    SELECT q.name, m.name, m.value, now_at, jsonb_build_object('group', g.name)
    FROM written w
    JOIN penstock.consumer_groups g ON g.group_id = w.group_id
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    CROSS JOIN LATERAL (
        VALUES
            ('lag', w.lag), ('depth', w.depth), ('claimed', w.claimed),
            ('oldest_age', coalesce(greatest(extract(epoch FROM now_at - w.oldest_at), 0), 0)::bigint)
    ) m (name, value)
    WHERE w.measured_at = now_at;
    DELETE FROM penstock.sampled s;
    WITH counted AS (
        SELECT d.group_id, d.dead_letter_id
        FROM penstock.dead_letters d
        WHERE d.dead_letter_id > seen
        ORDER BY d.dead_letter_id
        LIMIT 100000
    ), lasting AS (
        SELECT q.queue_id, q.name
        FROM penstock.queues q
        WHERE q.queue_id IN (
            SELECT g.queue_id FROM counted c JOIN penstock.consumer_groups g ON g.group_id = c.group_id
        )
        FOR KEY SHARE OF q SKIP LOCKED
    ), stored AS (
        INSERT INTO penstock.queue_metrics (queue_name, metric_name, metric_value, "timestamp", labels)
        SELECT q.name, 'dead_lettered', count(*), now_at, jsonb_build_object('group', g.name)
        FROM counted c
        JOIN penstock.consumer_groups g ON g.group_id = c.group_id
        JOIN lasting q ON q.queue_id = g.queue_id
        GROUP BY q.name, g.name
    )
    SELECT max(c.dead_letter_id) INTO last FROM counted c;
    IF last IS NOT NULL THEN
        INSERT INTO penstock.sample_marks (dead_letter_id) VALUES (last)
        ON CONFLICT (one) DO UPDATE SET dead_letter_id = excluded.dead_letter_id;
    END IF;
END
$$;
