-- penstock.wake_partitions(targets, base_offsets, only_group)
--
-- Puts partitions that were just pushed to in the ready list for every group that is not at them already. The caller holds the
-- locks of the partitions and the shared lock of their queues, and calls this in a statement of its own: only so
-- does it see the newest state of every group, and every group there is.
--
-- Parameters: targets - partition ids; base_offsets - the first offset that was pushed to each; only_group - null for
-- every group.
-- Returns: nothing.
-- Calls: begin_partition, newest_state. Tables: partitions, consumer_groups (read), journal, ready (insert).
CREATE OR REPLACE FUNCTION penstock.wake_partitions(
    targets bigint[], base_offsets bigint[], only_group integer DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    waking record;
BEGIN
    -- For one partition plain statements cost less than one that does all; for many it is the other way round.
    IF cardinality(targets) = 1 THEN
        FOR waking IN
            SELECT
                g.group_id, p.partition_id, p.priority, coalesce(j.version, 0) + 1 AS version,
                coalesce(j.committed, CASE g.subscription
                    WHEN 'all' THEN 0
                    WHEN 'new' THEN penstock.begin_partition(g.group_id, p.partition_id, base_offsets[1], g.created_at)
                    ELSE penstock.begin_partition(g.group_id, p.partition_id, NULL, g.from_time)
                END) AS committed,
                coalesce(j.skipped, 0) AS skipped, j.acked_at,
                nextval('penstock.ready_seq') AS seq
            FROM (SELECT p.* FROM penstock.partitions p WHERE p.partition_id = targets[1] LIMIT 1) p
            JOIN penstock.consumer_groups g
                ON g.queue_id = p.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
            LEFT JOIN LATERAL (
                SELECT j.version, j.state, j.committed, j.skipped, j.acked_at
                FROM penstock.journal j
                WHERE j.group_id = g.group_id AND j.partition_id = p.partition_id
                ORDER BY j.version DESC
                LIMIT 1
            ) j ON true
            WHERE (j.state IS NULL OR j.state IN ('i', 'p')) AND (only_group IS NULL OR g.group_id = only_group)
              AND (j.version IS NOT NULL OR g.from_time IS NULL OR g.from_time <= clock_timestamp())
        LOOP
            INSERT INTO penstock.journal (
                group_id, partition_id, version, state, committed, claimed_to, skipped, ready_seq, acked_at
            ) VALUES (
                waking.group_id, waking.partition_id, waking.version, 'r', waking.committed, waking.committed,
                waking.skipped, waking.seq, waking.acked_at
            );
            INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
            VALUES (waking.group_id, waking.priority, waking.seq, waking.partition_id);
        END LOOP;
        RETURN;
    END IF;
    WITH waking AS MATERIALIZED (
        SELECT
            g.group_id, p.partition_id, p.priority, coalesce(j.version, 0) + 1 AS version,
            coalesce(j.committed, CASE g.subscription
                WHEN 'all' THEN 0
                WHEN 'new' THEN penstock.begin_partition(g.group_id, p.partition_id, w.base_offset, g.created_at)
                ELSE penstock.begin_partition(g.group_id, p.partition_id, NULL, g.from_time)
            END) AS committed,
            coalesce(j.skipped, 0) AS skipped, j.acked_at,
            nextval('penstock.ready_seq') AS seq
        FROM unnest(targets, base_offsets) w (partition_id, base_offset)
        -- LIMIT: a plain join, planned for a small table, begins with the groups and all partitions of their queue.
        CROSS JOIN LATERAL (
            SELECT p.* FROM penstock.partitions p WHERE p.partition_id = w.partition_id LIMIT 1
        ) p
        JOIN penstock.consumer_groups g
            ON g.queue_id = p.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
        LEFT JOIN LATERAL penstock.newest_state(g.group_id, p.partition_id) j ON true
        WHERE (j.state IS NULL OR j.state IN ('i', 'p')) AND (only_group IS NULL OR g.group_id = only_group)
          -- A subscription from a time to come has nothing to read yet, and takes the partition up then.
          AND (j.version IS NOT NULL OR g.from_time IS NULL OR g.from_time <= clock_timestamp())
    ), appended AS (
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, ready_seq, acked_at
        )
        SELECT w.group_id, w.partition_id, w.version, 'r', w.committed, w.committed, w.skipped, w.seq, w.acked_at
        FROM waking w
    )
    INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
    SELECT w.group_id, w.priority, w.seq, w.partition_id FROM waking w;
END
$$;
