-- penstock.verify()
--
-- Checks that states and log agree. Every count must be 0 at any time, also under load: each check is one statement
-- with one snapshot.
--
-- Returns: a row per check: its name, the number of violations, and its meaning.
-- Calls: partition_span, offset_limit, offset_at, int32_at. Tables: segments, partitions, journal, ready, claims,
-- consumer_groups, queues, trimmed, partition_lookup, late_wakeups, archived, archive_files, scheduled, dedupe_ids, unique_keys, unique_moves,
-- beginnings, failing_timers, item_notes, item_steps, item_results, cancellations, limited_keys, slots, waiters,
-- warm_leases (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.verify()
RETURNS TABLE (check_name text, violations bigint, meaning text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
-- Statistics older than a table's growth make it look cheap to go through one table for each row of another.
SET enable_nestloop = off
AS $$
    WITH runs AS (
        SELECT
            s.partition_id, s.base_offset, s.count, s.created_at, s.ends, s.key_ends, s.header_ends,
            octet_length(coalesce(s.body, s.body_compressed)) AS body_bytes,
            octet_length(s.keys) AS key_bytes, octet_length(s.headers) AS header_bytes,
            lag(s.base_offset) OVER later AS last_base,
            lead(s.base_offset) OVER later AS next_base, lead(s.created_at) OVER later AS next_time
        FROM penstock.segments s
        WHERE s.partition_id > 0
        WINDOW later AS (PARTITION BY s.partition_id ORDER BY s.base_offset)
    ), spans AS (
        SELECT p.partition_id, p.queue_id, p.lane_of, s.floor_offset, s.head_offset, s.newest_at
        FROM penstock.partitions p
        CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
    ), newest AS (
        SELECT DISTINCT ON (j.group_id, j.partition_id) j.*
        FROM penstock.journal j
        ORDER BY j.group_id, j.partition_id, j.version DESC
    ), untrimmed AS (
        -- The sweep trims eight rows behind the timer of a claim. Rows with a timer of their own go when it is due.
        SELECT j.group_id, j.partition_id, count(*) AS rows
        FROM (
            SELECT
                j.group_id, j.partition_id, j.version, j.due_at, max(j.version) OVER (all_of_it) AS newest_version,
                min(j.version) FILTER (WHERE j.state = 'c') OVER (
                    all_of_it ORDER BY j.version ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
                ) AS next_claim
            FROM penstock.journal j
            WINDOW all_of_it AS (PARTITION BY j.group_id, j.partition_id)
        ) j
        WHERE j.due_at IS NULL AND j.version < j.newest_version AND j.next_claim - j.version <= 8 IS NOT TRUE
        GROUP BY j.group_id, j.partition_id
    ), used_up AS (
        -- What is offered or held after as many attempts as its group allows. Where nobody knows which message of
        -- several failed, each comes once more alone, so a limit of one is two.
        SELECT w.partition_id, w.message_offset, greatest(g.limited_at, q.limited_at) AS limited_at
        FROM (
            SELECT n.group_id, n.partition_id, n.committed AS message_offset, n.attempt, n.state = 'c' AS held
            FROM newest n
            WHERE n.state IN ('r', 't', 'c')
            UNION ALL
            SELECT y.group_id, y.partition_id, y.lo, y.attempt, false FROM penstock.ready y WHERE y.lo IS NOT NULL
            UNION ALL
            SELECT c.group_id, c.partition_id, c.lo, c.attempt, c.lease_id IS NOT NULL FROM penstock.claims c
        ) w
        JOIN penstock.consumer_groups g ON g.group_id = w.group_id
        JOIN penstock.queues q ON q.queue_id = g.queue_id
        WHERE w.attempt - w.held::integer
            >= greatest(coalesce(g.config ->> 'max_attempts', q.settings ->> 'max_attempts')::integer, 2)
    )
    SELECT 'segments_of_wrong_shape', count(*), 'a segment whose columns disagree about its messages' FROM runs r
    WHERE r.base_offset < 0 OR r.count < 1 OR r.base_offset + r.count > penstock.offset_limit()
       OR octet_length(r.ends) NOT IN (4 * r.count, 5 * r.count)
       OR 4 * r.count <> ANY (ARRAY[octet_length(r.key_ends), octet_length(r.header_ends)])
       OR EXISTS (
           -- Of each column its length, the first end and the last one: to go through all of them would take as long as
           -- to read the whole log.
           SELECT 1
           FROM (VALUES (r.ends, r.body_bytes), (r.key_ends, r.key_bytes), (r.header_ends, r.header_bytes)) c (ends, bytes)
           WHERE (c.ends IS NULL) <> (c.bytes IS NULL) OR CASE WHEN octet_length(c.ends) >= 4 * r.count THEN
               penstock.int32_at(substring(c.ends FROM 4 * r.count - 3 FOR 4), 0) <> c.bytes
               OR penstock.int32_at(substring(c.ends FOR 4), 0) NOT BETWEEN 0 AND c.bytes
           END
       )
    UNION ALL
    SELECT 'gaps', count(*), 'offsets missing between two segments, or before the first one' FROM runs r
    WHERE r.next_base > r.base_offset + r.count
       OR r.last_base IS NULL AND r.base_offset > 0
       AND NOT EXISTS (SELECT 1 FROM penstock.trimmed t WHERE t.partition_id = r.partition_id)
    UNION ALL
    SELECT 'overlaps', count(*), 'offsets in two segments' FROM runs r WHERE r.next_base < r.base_offset + r.count
    UNION ALL
    SELECT 'times_that_go_back', count(*), 'a segment that is older than the one before it' FROM runs r
    WHERE r.next_time < r.created_at
    UNION ALL
    SELECT 'stubs_inside', count(*), 'a stub with messages below it' FROM runs r
    JOIN spans s ON s.partition_id = r.partition_id
    WHERE r.ends IS NULL AND r.base_offset >= s.floor_offset
    UNION ALL
    SELECT 'orphan_segments', count(*), 'segments of no partition' FROM runs r
    WHERE NOT EXISTS (SELECT 1 FROM penstock.partitions p WHERE p.partition_id = r.partition_id)
    UNION ALL
    SELECT 'orphan_partitions', count(*), 'partitions of no queue, or lanes of no group' FROM penstock.partitions p
    WHERE NOT EXISTS (SELECT 1 FROM penstock.queues q WHERE q.queue_id = p.queue_id)
       OR p.lane_of IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = p.lane_of)
    UNION ALL
    SELECT 'newer_messages_count', count(*), 'messages newer than partition_lookup says' FROM runs r
    JOIN spans s ON s.partition_id = r.partition_id
    WHERE r.base_offset + r.count > s.head_offset
    UNION ALL
    SELECT 'partitions_with_stale_lookup', count(*), 'partitions whose newest message partition_lookup does not have'
    FROM spans s
    LEFT JOIN penstock.partition_lookup l ON l.partition_id = s.partition_id
    WHERE s.head_offset > s.floor_offset AND l.last_message_created_at IS DISTINCT FROM s.newest_at
    UNION ALL
    SELECT 'journal_rows_out_of_order', count(*), 'a journal row that is impossible by itself' FROM penstock.journal j
    WHERE j.committed < 0 OR j.committed > j.claimed_to OR j.state = 'c' AND j.due_at = 'infinity'
       OR (j.state = 'c') <> (j.lease_id IS NOT NULL)
       OR (j.state = 'r') <> (j.ready_seq IS NOT NULL) OR (j.state IN ('c', 't', 'p')) <> (j.due_at IS NOT NULL)
    UNION ALL
    SELECT 'orphan_journals', count(*), 'journals of no group or no partition' FROM newest n
    WHERE NOT EXISTS (SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = n.group_id)
       OR NOT EXISTS (SELECT 1 FROM penstock.partitions p WHERE p.partition_id = n.partition_id)
    UNION ALL
    SELECT 'positions_out_of_order', count(*), 'not committed <= claimed_to <= head' FROM newest n
    JOIN spans s ON s.partition_id = n.partition_id
    WHERE NOT (n.committed <= n.claimed_to AND n.claimed_to <= s.head_offset)
    UNION ALL
    SELECT 'work_not_ready', count(*), 'messages to read in a partition that is idle for its group'
    FROM newest n
    JOIN spans s ON s.partition_id = n.partition_id
    WHERE n.state = 'i' AND s.head_offset > greatest(n.committed, s.floor_offset)
      AND NOT EXISTS (SELECT 1 FROM penstock.late_wakeups w WHERE w.partition_id = s.partition_id)
    UNION ALL
    SELECT 'work_not_taken_up', count(*), 'messages to read in a partition that its group does not know' FROM spans s
    JOIN penstock.consumer_groups g ON g.queue_id = s.queue_id AND (s.lane_of IS NULL OR s.lane_of = g.group_id)
    WHERE g.enrolled_to IS NULL AND s.head_offset > s.floor_offset AND CASE g.subscription
          WHEN 'all' THEN true
          WHEN 'time' THEN s.newest_at >= g.from_time
          -- By both clocks, that of the wall and that of transactions: the one may go back, the other has merges.
          ELSE s.newest_at > g.created_at AND age(g.xmin) > (
              SELECT age(e.xmin) FROM penstock.segments e
              WHERE e.partition_id = s.partition_id
              ORDER BY e.base_offset DESC
              LIMIT 1
          )
      END
      AND NOT EXISTS (SELECT 1 FROM newest n WHERE n.group_id = g.group_id AND n.partition_id = s.partition_id)
      AND NOT EXISTS (SELECT 1 FROM penstock.late_wakeups w WHERE w.partition_id = s.partition_id)
    UNION ALL
    SELECT 'ready_without_entry', count(*), 'ready, and not in the ready list' FROM newest n
    WHERE n.state = 'r' AND NOT EXISTS (
        SELECT 1 FROM penstock.ready y WHERE y.group_id = n.group_id AND y.seq = n.ready_seq
    )
    UNION ALL
    SELECT 'entries_of_nobody', count(*), 'a ready list entry that no journal knows' FROM penstock.ready y
    WHERE y.lo IS NULL AND NOT EXISTS (
        SELECT 1 FROM newest n
        WHERE n.group_id = y.group_id AND n.partition_id = y.partition_id AND n.state = 'r' AND n.ready_seq = y.seq
    )
    UNION ALL
    SELECT 'entries_at_unknown_priority', count(*), 'a ready list entry at a priority that its queue does not know'
    FROM penstock.ready y
    JOIN penstock.consumer_groups g ON g.group_id = y.group_id
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    WHERE y.priority <> ALL (q.priorities)
    UNION ALL
    SELECT 'ranges_out_of_order', count(*), 'shared ranges that are empty, overlap or lie past what was handed out'
    FROM (
        SELECT w.*, lead(w.lo) OVER (PARTITION BY w.group_id, w.partition_id ORDER BY w.lo) AS next_lo
        FROM (
            SELECT c.group_id, c.partition_id, c.lo, c.hi FROM penstock.claims c
            UNION ALL
            SELECT y.group_id, y.partition_id, y.lo, y.hi FROM penstock.ready y WHERE y.lo IS NOT NULL
        ) w
    ) w
    LEFT JOIN newest n ON n.group_id = w.group_id AND n.partition_id = w.partition_id
    WHERE w.lo >= w.hi OR w.next_lo < w.hi OR w.hi > coalesce(n.claimed_to, 0)
    UNION ALL
    SELECT 'ranges_of_other_groups', count(*), 'shared ranges of a group that is not shared'
    FROM (
        SELECT c.group_id FROM penstock.claims c
        UNION ALL
        SELECT y.group_id FROM penstock.ready y WHERE y.lo IS NOT NULL
    ) w
    JOIN penstock.consumer_groups g ON g.group_id = w.group_id
    WHERE g.mode <> 'shared'
    UNION ALL
    SELECT 'journals_not_trimmed', count(*), 'more than 64 journal rows that no timer leads the sweep to' FROM untrimmed u
    WHERE u.rows > 64
    UNION ALL
    SELECT 'attempts_above_the_limit', count(*), 'delivered again after all attempts that the group allows'
    FROM used_up u
    CROSS JOIN LATERAL (
        SELECT s.created_at, s.run_counts FROM penstock.segments s
        WHERE s.partition_id = u.partition_id AND s.base_offset <= u.message_offset
        ORDER BY s.base_offset DESC
        LIMIT 1
    ) s
    -- Pushed since the limit is what it is: it may have been another one before.
    WHERE s.run_counts IS NULL AND s.created_at > u.limited_at
    UNION ALL
    SELECT 'archives_of_wrong_shape', count(*), 'archived ranges that overlap, or of no partition, file or message'
    FROM (
        SELECT a.*, lead(a.start_offset) OVER (PARTITION BY a.partition_id ORDER BY a.start_offset) AS next_start
        FROM penstock.archived a
    ) a
    LEFT JOIN spans s ON s.partition_id = a.partition_id
    LEFT JOIN penstock.archive_files f ON f.file_id = a.file_id
    WHERE s.partition_id IS NULL OR f.file_id IS NULL OR a.stop_offset > s.head_offset OR a.next_start < a.stop_offset
    UNION ALL
    SELECT 'orphan_schedules', count(*), 'scheduled messages of no partition' FROM penstock.scheduled s
    WHERE NOT EXISTS (
        SELECT 1 FROM penstock.partitions p WHERE p.partition_id = s.partition_id AND p.queue_id = s.queue_id
    )
    UNION ALL
    SELECT 'orphan_dedupe_ids', count(*), 'dedupe ids of no partition, of no message, or of none that is scheduled'
    FROM penstock.dedupe_ids k
    LEFT JOIN spans s ON s.partition_id = k.partition_id AND s.queue_id = k.queue_id
    WHERE s.partition_id IS NULL OR k.message_offset >= s.head_offset
       OR (k.scheduled_id IS NULL) <> (k.message_offset IS NOT NULL)
       OR k.scheduled_id IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM penstock.scheduled w WHERE w.scheduled_id = k.scheduled_id)
    UNION ALL
    -- A key whose scheduled message was cancelled stays until maintenance or a push finds that.
    SELECT 'orphan_unique_keys', count(*), 'unique keys of no partition, of no message, or of none that was scheduled'
    FROM penstock.unique_keys k
    LEFT JOIN spans s ON s.partition_id = k.partition_id AND s.queue_id = k.queue_id
    WHERE s.partition_id IS NULL OR k.message_offset >= s.head_offset
       OR (k.scheduled_id IS NULL) <> (k.message_offset IS NOT NULL)
    UNION ALL
    SELECT 'orphan_unique_moves', count(*), 'notes on scheduled messages with a unique key that are of no message'
    FROM penstock.unique_moves m
    LEFT JOIN spans s ON s.partition_id = m.partition_id
    WHERE s.partition_id IS NULL OR m.message_offset >= s.head_offset
       OR EXISTS (SELECT 1 FROM penstock.scheduled w WHERE w.scheduled_id = m.scheduled_id)
    UNION ALL
    SELECT 'messages_passed_over', count(*), 'a group that began after a message that was for it' FROM penstock.beginnings b
    JOIN penstock.consumer_groups g ON g.group_id = b.group_id
    WHERE b.base_offset > penstock.offset_at(
        b.partition_id, CASE WHEN g.subscription = 'new' THEN g.created_at ELSE g.from_time END
    )
    UNION ALL
    SELECT 'orphan_items', count(*), 'notes, steps, results or cancellations of no group, partition or message'
    FROM (
        SELECT n.group_id, n.partition_id, n.message_offset FROM penstock.item_notes n
        UNION ALL
        SELECT r.group_id, r.partition_id, r.message_offset FROM penstock.item_results r
        UNION ALL
        SELECT c.group_id, c.partition_id, c.message_offset FROM penstock.cancellations c
        UNION ALL
        SELECT t.group_id, t.partition_id, CASE WHEN n.group_id IS NOT NULL THEN t.message_offset END
        FROM penstock.item_steps t
        LEFT JOIN penstock.item_notes n ON n.group_id = t.group_id AND n.partition_id = t.partition_id
            AND n.message_offset = t.message_offset
    ) i
    LEFT JOIN penstock.consumer_groups g ON g.group_id = i.group_id
    LEFT JOIN spans s ON s.partition_id = i.partition_id AND s.queue_id = g.queue_id
    WHERE i.message_offset < s.head_offset IS NOT TRUE
    UNION ALL
    SELECT 'orphan_limits', count(*), 'limited keys, slots or waiting partitions of no group'
    FROM (
        SELECT k.group_id FROM penstock.limited_keys k
        UNION ALL
        SELECT s.group_id FROM penstock.slots s
        UNION ALL
        SELECT w.group_id FROM penstock.waiters w
    ) l
    WHERE NOT EXISTS (SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = l.group_id)
    UNION ALL
    SELECT 'orphan_warm_leases', count(*), 'windows in Valkey of no group' FROM penstock.warm_leases w
    WHERE NOT EXISTS (SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = w.group_id)
    UNION ALL
    SELECT 'timers_put_off', count(*), 'timers that failed: list_failing_timers says why' FROM penstock.failing_timers f
$$;
