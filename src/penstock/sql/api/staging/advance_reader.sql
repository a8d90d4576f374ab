-- penstock.advance_reader(queue_name, group_name, partition_ids, offsets, lineage, takes_over)
--
-- Reports how far an external group has read. Positions only go forward, except for a reader that takes the group
-- over. A partition that somebody is pushing to is skipped and counted as busy: report it again with the next call.
--
-- A group has one reader. If two queries report positions for one group, the one that started last keeps it and the
-- other gets an error: retention would otherwise drop messages that the slower one has not read. The group of a flow
-- belongs to the flow, which has its own rules for who may publish.
--
-- Parameters: partition_ids, offsets - parallel arrays; all messages below the offset are done; lineage - the reader,
-- by its lineage of snapshots, or null; takes_over - whether the reader starts and takes the group over.
-- Returns: the number of positions moved, and of busy partitions; raises object_not_in_prerequisite_state if another
-- reader has taken the group over.
-- Calls: require_read_committed, ensure_reader, partition_span, find_queue, newest_state. Tables: consumer_groups
-- (update), flows (read), partitions (lock), journal, ready (insert, delete), queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.advance_reader(
    queue_name text, group_name text, partition_ids bigint[], offsets bigint[],
    lineage bigint DEFAULT NULL, takes_over boolean DEFAULT false
)
RETURNS TABLE (moved bigint, busy bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    reader integer := penstock.ensure_reader(queue_name, group_name);
    queue  integer := penstock.find_queue(queue_name);
    levels smallint[];
    wanted bigint[];
    locked bigint[];
    owner  bigint;
    exact  boolean := false;
BEGIN
    PERFORM penstock.require_read_committed('advance_reader');
    -- Against delete_group, which would not see what is appended here.
    PERFORM 1 FROM penstock.consumer_groups g WHERE g.group_id = reader FOR KEY SHARE;
    IF advance_reader.lineage IS NOT NULL AND NOT EXISTS (SELECT 1 FROM penstock.flows f WHERE f.name = group_name) THEN
        owner := (SELECT g.lineage FROM penstock.consumer_groups g WHERE g.group_id = reader);
        IF owner <> advance_reader.lineage AND NOT takes_over THEN
            RAISE EXCEPTION 'group "%" of queue "%" was taken over by another query with the same groupId',
                group_name, queue_name
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Give each query a groupId of its own.';
        END IF;
        IF owner IS DISTINCT FROM advance_reader.lineage THEN
            UPDATE penstock.consumer_groups g SET lineage = advance_reader.lineage WHERE g.group_id = reader;
        END IF;
        exact := takes_over;
    END IF;
    levels := (SELECT q.priorities FROM penstock.queues q WHERE q.queue_id = queue);
    wanted := ARRAY(
        SELECT w.partition_id FROM unnest(partition_ids) w (partition_id)
        JOIN penstock.partitions p ON p.partition_id = w.partition_id AND p.queue_id = queue
    );
    -- The lock makes us the only one who may append: nobody pops with this group.
    locked := ARRAY(
        SELECT p.partition_id FROM penstock.partitions p
        WHERE p.partition_id = ANY (wanted)
        ORDER BY p.partition_id
        FOR NO KEY UPDATE SKIP LOCKED
    );
    busy := cardinality(wanted) - cardinality(locked);
    WITH moving AS MATERIALIZED (
        SELECT
            w.partition_id, p.priority, coalesce(j.version, 0) AS version, coalesce(j.skipped, 0) AS skipped,
            j.ready_seq AS old_seq, s.head_offset, least(w.position, s.head_offset) AS committed,
            CASE WHEN s.head_offset > w.position THEN nextval('penstock.ready_seq') END AS seq
        FROM unnest(partition_ids, offsets) w (partition_id, position)
        JOIN unnest(locked) l (partition_id) ON l.partition_id = w.partition_id
        CROSS JOIN LATERAL (
            SELECT p.priority FROM penstock.partitions p WHERE p.partition_id = w.partition_id LIMIT 1
        ) p
        CROSS JOIN LATERAL penstock.partition_span(w.partition_id) s
        LEFT JOIN LATERAL penstock.newest_state(reader, w.partition_id) j ON true
        WHERE j.version IS NULL OR least(w.position, s.head_offset) > j.committed
           OR exact AND least(w.position, s.head_offset) < j.committed
    ), left_list AS (
        DELETE FROM penstock.ready y
        USING moving m, unnest(levels) v (level)
        WHERE y.group_id = reader AND y.priority = v.level AND y.seq = m.old_seq
    ), trimmed AS (
        DELETE FROM penstock.journal j
        USING moving m
        WHERE j.group_id = reader AND j.partition_id = m.partition_id AND j.version BETWEEN m.version - 8 AND m.version
    ), appended AS (
        -- Not by append_state: a query may have a hundred thousand partitions, and a call for each takes half as long
        -- again.
        INSERT INTO penstock.journal (
            group_id, partition_id, version, state, committed, claimed_to, skipped, ready_seq, acked_at
        )
        SELECT
            reader, m.partition_id, m.version + 1, CASE WHEN m.seq IS NULL THEN 'i' ELSE 'r' END::"char",
            m.committed, m.committed, m.skipped, m.seq, clock_timestamp()
        FROM moving m
    ), joined AS (
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
        SELECT reader, m.priority, m.seq, m.partition_id FROM moving m WHERE m.seq IS NOT NULL
    )
    SELECT count(*) INTO moved FROM moving;
    RETURN NEXT;
END
$$;
