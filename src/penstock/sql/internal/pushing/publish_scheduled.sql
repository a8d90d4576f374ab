-- penstock.publish_scheduled(max_rows, since, soon, passing, only_id)
--
-- Publishes scheduled messages that are due: deletes their rows and appends their segments, in order of due time. It
-- is part of the sweep and never waits: messages that are being cancelled, or whose partition is locked, or whose
-- queue is getting a new group, are left to the next sweep.
--
-- Parameters: max_rows - the approximate number of rows of `scheduled` to publish; since - those due before are left
-- alone, as in the sweep; soon - no later due time is looked for; passing - whether to skip postponed ones; only_id -
-- null for all.
-- Returns: the number published, whether that was all, and when the next one is due.
-- Calls: append_segments, queue_lock_class, is_put_off. Tables: scheduled (delete), partitions (lock), dedupe_ids
-- (update), unique_moves (insert).
CREATE OR REPLACE FUNCTION penstock.publish_scheduled(
    max_rows integer, since timestamptz, soon timestamptz, passing boolean DEFAULT false, only_id bigint DEFAULT NULL,
    OUT published integer, OUT complete boolean, OUT next_due timestamptz
)
LANGUAGE plpgsql
AS $$
DECLARE
    -- No transaction of the sweep writes more than this, unless a single row has more.
    most_bytes constant bigint := 16777216;
    now_here   timestamptz := clock_timestamp();
    after_due  timestamptz := since;
    after_id   bigint := 0;
    written    bigint := 0;
    look_until timestamptz;
    chunk      record;
    locked     bigint[];
    quiet      integer[];
    taken      record;
    stored     record;
BEGIN
    published := 0;
    complete := true;
    -- In chunks, until enough was done: a chunk that is busy altogether must not hide those after it.
    LOOP
        SELECT
            count(*) AS found, count(*) FILTER (WHERE d.fits) AS visited,
            array_agg(d.scheduled_id) FILTER (WHERE d.fits) AS ids,
            array_agg(DISTINCT d.partition_id) FILTER (WHERE d.fits) AS places,
            (array_agg(d.due_at ORDER BY d.due_at DESC, d.scheduled_id DESC) FILTER (WHERE d.fits))[1] AS last_due,
            (array_agg(d.scheduled_id ORDER BY d.due_at DESC, d.scheduled_id DESC) FILTER (WHERE d.fits))[1] AS last_id
        INTO chunk
        FROM (
            SELECT
                s.*,
                written + sum(s.bytes) OVER running <= most_bytes
                OR written = 0 AND row_number() OVER running = 1 AS fits
            FROM (
                SELECT s.scheduled_id, s.partition_id, s.due_at, s.bytes
                FROM penstock.scheduled s
                WHERE (s.due_at, s.scheduled_id) > (after_due, after_id) AND s.due_at <= now_here
                  AND (only_id IS NULL OR s.scheduled_id = only_id)
                  AND NOT (passing AND penstock.is_put_off('scheduled', 0, s.partition_id, s.scheduled_id))
                ORDER BY s.due_at, s.scheduled_id
                LIMIT max_rows
            ) s
            WINDOW running AS (ORDER BY s.due_at, s.scheduled_id)
        ) d;
        complete := complete AND (chunk.found = 0 OR chunk.visited > 0);
        EXIT WHEN chunk.visited = 0;
        after_due := chunk.last_due;
        after_id := chunk.last_id;

        -- Pushes that follow one another leave a partition free for microseconds. Looking once would miss that again
        -- and again, so it looks for some milliseconds, in all; it does not wait.
        look_until := coalesce(look_until, clock_timestamp() + interval '5 milliseconds');
        locked := '{}';
        LOOP
            locked := locked || ARRAY(
                SELECT p.partition_id FROM penstock.partitions p
                WHERE p.partition_id = ANY (chunk.places) AND p.partition_id <> ALL (locked)
                ORDER BY p.partition_id
                FOR NO KEY UPDATE SKIP LOCKED
            );
            EXIT WHEN cardinality(locked) = cardinality(chunk.places) OR clock_timestamp() > look_until;
        END LOOP;
        -- A group that is being created would not see these messages: they are left to the next sweep.
        quiet := ARRAY(
            SELECT q.queue_id
            FROM (SELECT DISTINCT p.queue_id FROM penstock.partitions p WHERE p.partition_id = ANY (locked)) q
            WHERE pg_try_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id)
        );
        locked := ARRAY(
            SELECT p.partition_id FROM penstock.partitions p
            WHERE p.partition_id = ANY (locked) AND p.queue_id = ANY (quiet)
        );
        WITH due AS MATERIALIZED (
            SELECT s.scheduled_id FROM penstock.scheduled s
            WHERE s.scheduled_id = ANY (chunk.ids) AND s.partition_id = ANY (locked)
              -- Looked at again with the lock: a replacement may have put it off, or moved it.
              AND s.due_at <= now_here
            FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM penstock.scheduled s
            WHERE s.scheduled_id = ANY (ARRAY(SELECT d.scheduled_id FROM due d))
            RETURNING s.*
        )
        SELECT
            count(*) AS rows, sum(g.bytes) AS bytes,
            array_agg(g.partition_id ORDER BY g.due_at, g.scheduled_id) AS targets,
            array_agg(g.count ORDER BY g.due_at, g.scheduled_id) AS counts,
            array_agg(g.body ORDER BY g.due_at, g.scheduled_id) AS bodies,
            array_agg(g.ends ORDER BY g.due_at, g.scheduled_id) AS ends,
            array_agg(g.keys ORDER BY g.due_at, g.scheduled_id) AS keys,
            array_agg(g.key_ends ORDER BY g.due_at, g.scheduled_id) AS key_ends,
            array_agg(g.headers ORDER BY g.due_at, g.scheduled_id) AS headers,
            array_agg(g.header_ends ORDER BY g.due_at, g.scheduled_id) AS header_ends,
            array_agg(g.scheduled_id ORDER BY g.due_at, g.scheduled_id) AS ids,
            array_agg(g.is_unique ORDER BY g.due_at, g.scheduled_id) AS are_unique,
            -- As JSON: an array of arrays would have to be square.
            array_agg(array_to_json(g.dedupe_ids) ORDER BY g.due_at, g.scheduled_id) AS dedupe_ids,
            array_agg(array_to_json(g.dedupe_positions) ORDER BY g.due_at, g.scheduled_id) AS dedupe_positions
        INTO taken
        FROM gone g;
        complete := complete AND taken.rows = chunk.visited;
        IF taken.rows > 0 THEN
            published := published + taken.rows;
            written := written + taken.bytes;
            -- A new statement, hence a new snapshot: under the locks it sees every segment there is.
            SELECT array_agg(a.first_offset ORDER BY a.nth) AS offsets, array_agg(a.created_at ORDER BY a.nth) AS times
            INTO stored
            FROM penstock.append_segments(
                taken.targets, taken.counts, taken.bodies, taken.ends,
                taken.keys, taken.key_ends, taken.headers, taken.header_ends
            ) WITH ORDINALITY a (partition_id, first_offset, message_count, created_at, nth);
            UPDATE penstock.dedupe_ids k
            SET seen_at = i.created_at, message_offset = i.message_offset, scheduled_id = NULL
            FROM (
                SELECT
                    u.target, u.created_at, u.scheduled_id, u.first_offset + p.position::integer AS message_offset,
                    d.dedupe_id
                FROM unnest(
                    taken.targets, taken.ids, stored.offsets, stored.times, taken.dedupe_ids, taken.dedupe_positions
                ) u (target, scheduled_id, first_offset, created_at, dedupe_ids, dedupe_positions)
                CROSS JOIN LATERAL json_array_elements_text(u.dedupe_ids) WITH ORDINALITY d (dedupe_id, n)
                JOIN LATERAL json_array_elements_text(u.dedupe_positions) WITH ORDINALITY p (position, n) ON p.n = d.n
            ) i
            WHERE k.partition_id = i.target AND k.dedupe_id = i.dedupe_id AND k.scheduled_id = i.scheduled_id;
            -- A new row, which waits for nobody: somebody may have locked the unique key.
            INSERT INTO penstock.unique_moves (scheduled_id, partition_id, message_offset, created_at)
            SELECT u.scheduled_id, u.target, u.first_offset, u.created_at
            FROM unnest(taken.ids, taken.targets, taken.are_unique, stored.offsets, stored.times)
                u (scheduled_id, target, is_unique, first_offset, created_at)
            WHERE u.is_unique;
        END IF;
        IF published >= max_rows OR written >= most_bytes THEN
            complete := false;
            EXIT;
        END IF;
    END LOOP;
    next_due := (
        SELECT s.due_at FROM penstock.scheduled s WHERE s.due_at > now_here AND s.due_at < soon ORDER BY s.due_at LIMIT 1
    );
END
$$;
