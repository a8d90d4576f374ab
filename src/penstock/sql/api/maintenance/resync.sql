-- penstock.resync(after_partition, max_partitions)
--
-- Repairs the ready list after a restore, or a logical replication that did not run penstock's functions: every
-- partition with work gets an entry, entries that no journal row refers to are deleted, and entries at a priority
-- that no pop looks at are moved to their partition's. It is harmless at any time, also under load. Call it again
-- with the returned position until that is null.
--
-- Parameters: after_partition - where the last call ended, 0 to begin; max_partitions - the number of partitions to
-- visit.
-- Returns: what was repaired, and the position for the next call.
-- Calls: partition_span, append_state, wake_partitions, require_read_committed, newest_state. Tables:
-- consumer_groups, partitions (lock), queues (update), journal, scheduled (read), ready (update, delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.resync(after_partition bigint DEFAULT 0, max_partitions integer DEFAULT 1000)
RETURNS TABLE (visited bigint, repaired bigint, busy bigint, next_partition bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- Statistics may be older than a restore; whatever they say, each partition is looked up by its keys.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    place  record;
    reader record;
    newest penstock.journal;
    span   record;
    given  bigint;
    moved  bigint;
BEGIN
    IF (max_partitions > 0 AND after_partition >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'max_partitions is % and must be above 0; after_partition is % and must be 0 or above',
            max_partitions, after_partition
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_read_committed('resync');
    visited := 0;
    repaired := 0;
    busy := 0;
    -- Against delete_group, which would not see what is appended here.
    PERFORM 1 FROM penstock.consumer_groups g ORDER BY g.group_id FOR KEY SHARE;
    IF after_partition = 0 THEN
        -- A restore can leave the sequences behind what they have given. Otherwise they are left alone: others use
        -- them.
        SELECT greatest(
            (SELECT max(y.seq) FROM penstock.ready y), (SELECT max(j.ready_seq) FROM penstock.journal j)
        ) INTO given;
        IF given > nextval('penstock.ready_seq') THEN
            PERFORM setval('penstock.ready_seq', given);
        END IF;
        given := (SELECT max(s.scheduled_id) FROM penstock.scheduled s);
        IF given > nextval('penstock.scheduled_seq') THEN
            PERFORM setval('penstock.scheduled_seq', given);
        END IF;
        -- Pops look at the priorities that the queue has, and nowhere else.
        UPDATE penstock.queues q
        SET priorities = ARRAY(
            SELECT l.level FROM unnest(q.priorities) l (level)
            UNION
            SELECT p.priority FROM penstock.partitions p WHERE p.queue_id = q.queue_id
            ORDER BY 1 DESC
        )
        WHERE EXISTS (
            SELECT 1 FROM penstock.partitions p WHERE p.queue_id = q.queue_id AND p.priority <> ALL (q.priorities)
        );
        UPDATE penstock.ready y
        SET priority = (SELECT p.priority FROM penstock.partitions p WHERE p.partition_id = y.partition_id)
        WHERE y.ctid = ANY (ARRAY(
            SELECT y.ctid FROM penstock.ready y
            WHERE y.priority <> ALL ((
                SELECT q.priorities FROM penstock.queues q
                JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
                WHERE g.group_id = y.group_id
            )::smallint[]) AND EXISTS (SELECT 1 FROM penstock.partitions p WHERE p.partition_id = y.partition_id)
            FOR UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS moved = ROW_COUNT;
        DELETE FROM penstock.ready y
        WHERE y.ctid = ANY (ARRAY(
            SELECT y.ctid FROM penstock.ready y
            WHERE y.lo IS NULL AND y.seq IS DISTINCT FROM (
                SELECT j.ready_seq FROM penstock.newest_state(y.group_id, y.partition_id) j
            )
            FOR UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS repaired = ROW_COUNT;
        repaired := repaired + moved;
    END IF;
    FOR place IN
        SELECT
            p.partition_id, p.queue_id, p.lane_of,
            (SELECT q.priorities FROM penstock.queues q WHERE q.queue_id = p.queue_id) AS priorities
        FROM penstock.partitions p
        WHERE p.partition_id > after_partition
        ORDER BY p.partition_id
        LIMIT max_partitions
    LOOP
        visited := visited + 1;
        next_partition := place.partition_id;
        PERFORM 1 FROM penstock.partitions p
        WHERE p.partition_id = place.partition_id
        FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            busy := busy + 1;
            CONTINUE;
        END IF;
        SELECT s.* INTO span FROM penstock.partition_span(place.partition_id) s;
        FOR reader IN
            SELECT g.group_id, g.subscription, g.enrolled_to FROM penstock.consumer_groups g
            WHERE g.queue_id = place.queue_id AND (place.lane_of IS NULL OR place.lane_of = g.group_id)
        LOOP
            SELECT j.* INTO newest FROM penstock.newest_state(reader.group_id, place.partition_id) j;
            IF newest.version IS NULL THEN
                IF span.head_offset > span.floor_offset AND reader.subscription <> 'new' AND reader.enrolled_to IS NULL THEN
                    PERFORM penstock.wake_partitions(ARRAY[place.partition_id], ARRAY[span.head_offset], reader.group_id);
                    repaired := repaired + 1;
                END IF;
            -- Ready without an entry: nobody else can append the next row, so we may; the lock makes us the only one.
            ELSIF newest.state = 'r' AND NOT EXISTS (
                -- Level by level: without one, PostgreSQL up to 17 reads the group's whole ready list.
                SELECT 1
                FROM unnest(place.priorities) l (level)
                CROSS JOIN LATERAL (
                    SELECT 1 FROM penstock.ready y
                    WHERE y.group_id = newest.group_id AND y.priority = l.level AND y.seq = newest.ready_seq
                      AND y.partition_id = newest.partition_id
                    LIMIT 1
                ) y
            ) THEN
                PERFORM 1 FROM penstock.journal j
                WHERE j.group_id = newest.group_id AND j.partition_id = newest.partition_id
                  AND j.version > newest.version;
                IF NOT FOUND THEN
                    PERFORM penstock.append_state(
                        newest, 'r', newest.committed, newest.attempt, newest.narrow_attempt, newest.narrow_to
                    );
                    repaired := repaired + 1;
                END IF;
            ELSIF newest.state = 'i' AND span.head_offset > greatest(newest.committed, span.floor_offset) THEN
                PERFORM penstock.append_state(newest, 'r', newest.committed);
                repaired := repaired + 1;
            END IF;
        END LOOP;
    END LOOP;
    IF visited < max_partitions THEN
        next_partition := NULL;
    END IF;
    RETURN NEXT;
END
$$;
