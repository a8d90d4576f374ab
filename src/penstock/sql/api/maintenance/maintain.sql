-- penstock.maintain(after_partition, max_partitions, min_segments, max_seconds)
--
-- Applies retention, merges small segments and trims unique keys in a chunk of partitions; the last call of a pass also
-- trims dedupe ids, the answers to old pushes, limited keys, health, metrics and what was kept of items, and removes
-- abandoned stages. Call it again with the returned position until that is null. Each call is one short transaction and
-- blocks no push. At the end of a pass everything that retention drops
-- is gone, except in a partition in which somebody holds a lock, as a push above READ COMMITTED does: the next pass
-- visits it again. One caller works at a time; another one gets no row.
--
-- A partition that fails does not hold up others. The next pass visits all of it again; until it succeeds,
-- list_failing_timers and `penstock doctor` show it.
--
-- Parameters: after_partition - where the last call ended, 0 to begin; max_partitions - the number of partitions to
-- visit; min_segments - the smallest number of small segments to merge; max_seconds - after this time the call ends
-- with the partition it is at.
-- Returns: what was done, and the position for the next call.
-- Calls: retain_partition, merge_segments, trim_unique_keys, trim_pushes, trim_items, trim_limits, sweep_stages,
-- trim_consumers, trim_metrics, put_off, queue_lock_class. Tables: queues, partitions, unique_keys,
-- consumer_groups (read), maintenance (insert, update), failing_timers (read, delete), warm_leases (delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.maintain(
    after_partition bigint DEFAULT 0, max_partitions integer DEFAULT 1000, min_segments integer DEFAULT 64,
    max_seconds float8 DEFAULT 1
)
RETURNS TABLE (
    visited integer, dropped_segments bigint, dropped_messages bigint, merged_segments bigint, next_partition bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10ms'
AS $$
DECLARE
    -- A push that was in progress during the last pass may have committed since, with an earlier time.
    since   timestamptz := coalesce(
        (SELECT m.looked_at - interval '10 minutes' FROM penstock.maintenance m), '-infinity'
    );
    until   timestamptz := clock_timestamp() + make_interval(secs => max_seconds);
    failing bigint[] := ARRAY(SELECT f.partition_id FROM penstock.failing_timers f WHERE f.kind = 'maintenance');
    problem text;
    state   text;
    place   record;
    dropped record;
    before  bigint[];
    merged  integer;
    more    boolean := false;
    ended   boolean := true;
BEGIN
    IF (after_partition >= 0 AND max_partitions > 0 AND max_seconds >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'after_partition is %, max_partitions is %, max_seconds is %: none may be null, max_partitions not below 1',
            after_partition, max_partitions, max_seconds
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT pg_try_advisory_xact_lock(penstock.queue_lock_class(), 0) THEN
        RETURN;
    END IF;
    IF after_partition = 0 THEN
        INSERT INTO penstock.maintenance (began_at) VALUES (clock_timestamp())
        ON CONFLICT (one) DO UPDATE SET began_at = excluded.began_at;
        BEGIN
            PERFORM penstock.sweep_stages();
            PERFORM penstock.trim_consumers();
            PERFORM penstock.trim_metrics(10000);
            -- A restore or an earlier version may have left some.
            DELETE FROM penstock.warm_leases w
            WHERE NOT EXISTS (SELECT 1 FROM penstock.consumer_groups g WHERE g.group_id = w.group_id);
            DELETE FROM penstock.failing_timers f
            WHERE f.kind = 'maintenance'
              AND NOT EXISTS (SELECT 1 FROM penstock.partitions p WHERE p.partition_id = f.partition_id);
        EXCEPTION
            WHEN lock_not_available THEN
                NULL; -- the next pass comes here again
            WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
                PERFORM penstock.put_off('maintenance', 0, 0, 0, state, problem);
        END;
    END IF;
    visited := 0;
    dropped_segments := 0;
    dropped_messages := 0;
    merged_segments := 0;
    FOR place IN
        SELECT
            p.partition_id, q.settings,
            EXISTS (SELECT 1 FROM penstock.unique_keys k WHERE k.partition_id = p.partition_id) AS has_unique_keys
        FROM penstock.partitions p
        JOIN penstock.queues q ON q.queue_id = p.queue_id
        WHERE p.partition_id > after_partition
        ORDER BY p.partition_id
        LIMIT max_partitions
    LOOP
        visited := visited + 1;
        next_partition := place.partition_id;
        before := ARRAY[dropped_segments, dropped_messages, merged_segments];
        BEGIN
            IF place.settings ->> 'retention_time' IS NOT NULL OR place.settings ->> 'retention_bytes' IS NOT NULL THEN
                SELECT * INTO dropped FROM penstock.retain_partition(place.partition_id, place.settings, until);
                dropped_segments := dropped_segments + dropped.dropped_segments;
                dropped_messages := dropped_messages + dropped.dropped_messages;
                more := NOT dropped.complete;
            END IF;
            WHILE NOT more LOOP
                merged := penstock.merge_segments(
                    place.partition_id, min_segments,
                    CASE WHEN place.partition_id = ANY (failing) THEN '-infinity' ELSE since END
                );
                merged_segments := merged_segments + merged;
                -- Transactions are short: the next one continues with this partition.
                more := merged > 0 AND merged_segments >= 20000;
                EXIT WHEN merged = 0;
            END LOOP;
            IF place.has_unique_keys THEN
                PERFORM penstock.trim_unique_keys(place.partition_id);
            END IF;
            IF place.partition_id = ANY (failing) AND NOT more THEN
                DELETE FROM penstock.failing_timers f
                WHERE f.kind = 'maintenance' AND f.partition_id = place.partition_id;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
            -- What this partition had to count was undone with it.
            dropped_segments := before[1];
            dropped_messages := before[2];
            merged_segments := before[3];
            more := false;
            IF state <> '55P03' THEN -- lock_not_available
                PERFORM penstock.put_off('maintenance', 0, place.partition_id, 0, state, problem);
            ELSIF place.partition_id = ANY (failing) IS NOT TRUE THEN
                -- The next pass must look as far back as this one did.
                UPDATE penstock.maintenance SET began_at = looked_at;
            END IF;
        END;
        IF more THEN
            next_partition := place.partition_id - 1;
        END IF;
        ended := NOT more AND clock_timestamp() < until;
        EXIT WHEN NOT ended;
    END LOOP;
    IF visited < max_partitions AND ended THEN
        -- The pass ends with what is not of one partition; while there may be more of that, it does not end.
        next_partition := CASE
            WHEN greatest(penstock.trim_pushes(10000), penstock.trim_items(10000)) >= 10000
                THEN coalesce(next_partition, after_partition)
        END;
        IF next_partition IS NULL THEN
            PERFORM penstock.trim_limits(10000);
            UPDATE penstock.maintenance SET looked_at = began_at;
        END IF;
    END IF;
    RETURN NEXT;
END
$$;
