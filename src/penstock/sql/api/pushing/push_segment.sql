-- penstock.push_segment(queue_name, partition_name, count, body, ends, keys, key_ends, headers, header_ends, producer,
--                       sequence)
--
-- Appends one packed segment to one partition: push_segments for the commonest push, at a fraction of its cost.
--
-- Parameters: one entry of those of push_segments; producer and sequence as there.
-- Returns: where the segment went and the time its messages got.
-- Calls: ensure_partitions, require_packed, compresses, pushed_before, offset_limit, refuse_full, wake_partitions,
-- push_segments, queue_lock_class, int32_at, packed_bytes, newest_segment. Tables: queues, consumer_groups, journal (read),
-- partitions (lock), segments, producers (insert).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.push_segment(
    queue_name     text,
    partition_name text,
    count          integer,
    body           bytea,
    ends           bytea,
    keys           bytea DEFAULT NULL,
    key_ends       bytea DEFAULT NULL,
    headers        bytea DEFAULT NULL,
    header_ends    bytea DEFAULT NULL,
    producer       uuid DEFAULT NULL,
    sequence       bigint DEFAULT NULL
)
RETURNS TABLE (partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    target record;
    asleep boolean;
BEGIN
    -- A look at a table here costs as much as the insert of a row: hence so few of them.
    -- What is out of the ordinary goes to push_segments.
    IF current_setting('transaction_isolation') <> 'read committed'
        OR current_setting('penstock.lock_timeout', true) <> ''
    THEN
        RETURN QUERY SELECT * FROM penstock.push_segments(
            ARRAY[queue_name], ARRAY[partition_name], ARRAY[count], ARRAY[body], ARRAY[ends],
            ARRAY[keys], ARRAY[key_ends], ARRAY[headers], ARRAY[header_ends], producer, sequence
        );
        RETURN;
    END IF;
    LOOP
        SELECT
            p.partition_id, q.queue_id, penstock.compresses(q.settings ->> 'compression') AS compressed,
            -- Keeps a group from coming into being until we have committed: it would not know of these messages.
            pg_try_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id) AS joined,
            -- Most segments are plainly right, and need no call to be told so.
            num_nonnulls(keys, key_ends, headers, header_ends) = 0
            AND count BETWEEN 1 AND 1000000
            AND octet_length(ends) = 4 * count
            AND penstock.int32_at(ends, count - 1) = octet_length(body)
            AND octet_length(body) <= (q.settings ->> 'max_message_bytes')::integer AS plain
        INTO target
        FROM penstock.queues q
        -- The lock keeps this a query of its own. A join, planned for small tables, looks for the name in all queues.
        CROSS JOIN LATERAL (
            SELECT n.partition_id FROM penstock.partitions n
            WHERE n.queue_id = q.queue_id AND n.name = partition_name
            FOR NO KEY UPDATE
        ) p
        WHERE q.name = queue_name;
        EXIT WHEN FOUND;
        PERFORM penstock.ensure_partitions(ARRAY[queue_name], ARRAY[partition_name]);
    END LOOP;
    IF NOT target.joined THEN
        PERFORM pg_advisory_xact_lock_shared(penstock.queue_lock_class(), target.queue_id);
    END IF;
    IF target.plain IS NOT TRUE THEN
        PERFORM penstock.require_packed(
            q.name, (q.settings ->> 'max_message_bytes')::integer,
            count, body, ends, keys, key_ends, headers, header_ends
        )
        FROM penstock.queues q
        WHERE q.queue_id = target.queue_id;
    END IF;

    -- New statements, hence new snapshots: under the locks they see every push, every segment and every group there is.
    IF producer IS NULL THEN
        SELECT newest.head_offset, greatest(clock_timestamp(), newest.created_at)
        INTO first_offset, created_at
        FROM penstock.newest_segment(target.partition_id) newest;
        IF NOT FOUND THEN
            first_offset := 0;
            created_at := clock_timestamp();
        END IF;
    ELSE
        -- Under the lock: whoever pushed this before has committed, or will never.
        INSERT INTO penstock.producers AS pushed (producer, sequence, pushed_at, partition_id, first_offset, count)
        SELECT
            producer, sequence, greatest(clock_timestamp(), newest.created_at), target.partition_id,
            coalesce(newest.head_offset, 0), count
        FROM (VALUES (1)) one
        LEFT JOIN LATERAL penstock.newest_segment(target.partition_id) newest ON true
        ON CONFLICT ON CONSTRAINT producers_pkey DO NOTHING
        RETURNING pushed.first_offset, pushed.pushed_at INTO first_offset, created_at;
        IF NOT FOUND THEN
            RETURN QUERY SELECT * FROM penstock.pushed_before(producer, sequence);
            RETURN;
        END IF;
    END IF;
    INSERT INTO penstock.segments (
        partition_id, base_offset, created_at, count, bytes,
        body, body_compressed, ends, keys, key_ends, headers, header_ends
    )
    VALUES (
        target.partition_id, first_offset, created_at, count, penstock.packed_bytes(body, keys, headers),
        CASE WHEN NOT target.compressed THEN body END, CASE WHEN target.compressed THEN body END,
        ends, keys, key_ends, headers, header_ends
    )
    -- Most groups are at the partition already. wake_partitions looks once more, and does what there is to do.
    RETURNING EXISTS (
        SELECT 1 FROM penstock.consumer_groups g
        WHERE g.queue_id = target.queue_id AND coalesce((
            SELECT j.state FROM penstock.journal j
            WHERE j.group_id = g.group_id AND j.partition_id = target.partition_id
            ORDER BY j.version DESC
            LIMIT 1
        ), 'i') IN ('i', 'p')
    ) INTO asleep;
    IF first_offset + count > penstock.offset_limit() THEN
        PERFORM penstock.refuse_full(partition_name);
    END IF;
    partition_id := target.partition_id;
    message_count := count;
    IF asleep THEN
        PERFORM penstock.wake_partitions(ARRAY[partition_id], ARRAY[first_offset]);
    END IF;
    RETURN NEXT;
END
$$;
