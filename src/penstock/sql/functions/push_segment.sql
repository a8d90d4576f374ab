-- penstock.push_segment(queue_name, partition_name, count, body, ends, keys, key_ends, headers, header_ends, producer,
--                       sequence)
--
-- Appends one packed segment to one partition: push_segments for the commonest push, at a fraction of its cost.
--
-- Parameters: one entry of those of push_segments; producer and sequence as there.
-- Returns: where the segment went and the time its messages got.
-- Calls: ensure_partitions, require_packed, compresses, pushed_before, offset_limit, refuse_full, wake_partitions,
-- push_segments (for callers above READ COMMITTED). Tables: queues, consumer_groups (read), partitions (lock), segments,
-- producers (insert).
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
    target     record;
    compressed boolean;
    consumed   boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN QUERY SELECT * FROM penstock.push_segments(
            ARRAY[queue_name], ARRAY[partition_name], ARRAY[count], ARRAY[body], ARRAY[ends],
            ARRAY[keys], ARRAY[key_ends], ARRAY[headers], ARRAY[header_ends], producer, sequence
        );
        RETURN;
    END IF;
    -- What use_lock_timeout does, without the cost of a call.
    IF current_setting('penstock.lock_timeout', true) <> '' THEN
        PERFORM set_config('lock_timeout', current_setting('penstock.lock_timeout'), true);
    END IF;
    LOOP
        SELECT p.partition_id, q.queue_id, q.name, q.settings INTO target
        FROM penstock.partitions p
        JOIN penstock.queues q ON q.queue_id = p.queue_id
        -- Not q.name = queue_name: that, planned for a small table, looks for the partition's name in all queues.
        WHERE p.queue_id = (SELECT n.queue_id FROM penstock.queues n WHERE n.name = queue_name)
          AND p.name = partition_name
        FOR NO KEY UPDATE OF p;
        EXIT WHEN FOUND;
        PERFORM penstock.ensure_partitions(ARRAY[queue_name], ARRAY[partition_name]);
    END LOOP;
    -- Keeps a group from coming into being until we have committed: it would not know of these messages.
    PERFORM pg_advisory_xact_lock_shared(penstock.queue_lock_class(), target.queue_id);
    -- Most segments are plainly right, and need no call to be told so.
    IF num_nonnulls(keys, key_ends, headers, header_ends) > 0 OR (
        count BETWEEN 1 AND 1000000
        AND octet_length(ends) = 4 * count
        AND penstock.int32_at(ends, count - 1) = octet_length(body)
        AND octet_length(body) <= (target.settings ->> 'max_message_bytes')::integer
    ) IS NOT TRUE THEN
        PERFORM penstock.require_packed(
            target.name, (target.settings ->> 'max_message_bytes')::integer,
            count, body, ends, keys, key_ends, headers, header_ends
        );
    END IF;

    compressed := penstock.compresses(target.settings ->> 'compression');
    -- A new statement, hence a new snapshot: under the locks it sees every segment and every group there is. One
    -- statement for all of it: starting and ending one costs as much as what it does here.
    INSERT INTO penstock.segments AS s (
        partition_id, base_offset, created_at, count, bytes,
        body, body_compressed, ends, keys, key_ends, headers, header_ends
    )
    SELECT
        target.partition_id, coalesce(newest.head, 0), greatest(clock_timestamp(), newest.created_at), count,
        penstock.packed_bytes(body, keys, headers),
        CASE WHEN NOT compressed THEN body END, CASE WHEN compressed THEN body END,
        ends, keys, key_ends, headers, header_ends
    FROM (VALUES (1)) one
    LEFT JOIN LATERAL (
        SELECT g.base_offset + g.count AS head, g.created_at
        FROM penstock.segments g
        WHERE g.partition_id = target.partition_id
        ORDER BY g.base_offset DESC
        LIMIT 1
    ) newest ON true
    -- Asked here, under the lock: whoever pushed this before has committed, or will never.
    WHERE producer IS NULL OR NOT EXISTS (
        SELECT 1 FROM penstock.producers d WHERE d.producer = push_segment.producer AND d.sequence = push_segment.sequence
    )
    RETURNING
        s.base_offset, s.created_at,
        EXISTS (SELECT 1 FROM penstock.consumer_groups g WHERE g.queue_id = target.queue_id)
    INTO first_offset, created_at, consumed;
    IF producer IS NOT NULL THEN
        IF NOT FOUND THEN
            RETURN QUERY SELECT * FROM penstock.pushed_before(producer, sequence);
            RETURN;
        END IF;
        INSERT INTO penstock.producers (producer, sequence, pushed_at, partition_id, first_offset, count)
        VALUES (producer, sequence, created_at, target.partition_id, first_offset, count);
    END IF;
    IF first_offset + count > penstock.offset_limit() THEN
        PERFORM penstock.refuse_full(partition_name);
    END IF;
    partition_id := target.partition_id;
    message_count := count;
    IF consumed THEN
        PERFORM penstock.wake_partitions(ARRAY[partition_id], ARRAY[first_offset]);
    END IF;
    RETURN NEXT;
END
$$;
