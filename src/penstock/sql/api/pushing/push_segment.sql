-- penstock.push_segment(queue_name, partition_name, count, body, ends, keys, key_ends, headers, header_ends, producer,
--                       sequence)
--
-- Appends one packed segment to one partition: push_segments for the commonest push, at a fraction of its cost.
--
-- Parameters: one entry of those of push_segments; producer and sequence as there. The setting `penstock.hint`, if it is
-- set for the transaction, is sent to those who wait, by NOTIFY, if a group has to be woken; it is then empty.
-- Returns: where the segment went and the time its messages got.
-- Calls: ensure_partitions, require_packed, compresses, pushed_before, admit_push, offset_limit, refuse_full, wake_partitions,
-- push_segments, queue_lock_class, packed_bytes. Tables: queues, consumer_groups (read), partitions (lock), segments,
-- producers, journal, ready (insert).
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
    queue      integer;
    compressed boolean;
    ordinary   boolean;
    gated      boolean;
    checked    text;
    lane       integer;
    level      smallint;
    asleep     penstock.journal[];
    last       penstock.journal;
    entry      bigint;
BEGIN
    -- What costs is not the rows but to begin a statement: so much for each, for each table in it and for each function
    -- that it calls. Hence few of them, and no joins where a statement can do without.
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
            p.partition_id, p.priority, p.lane_of, q.queue_id, count, penstock.compresses(q.settings ->> 'compression'),
            -- Keeps a group from coming into being until we have committed: it would not know of these messages.
            pg_try_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id)
            -- Most segments are plainly right, and need no call to be told so: of values only, and the last end, in
            -- little-endian order, is where they end.
            AND coalesce(keys, key_ends, headers, header_ends) IS NULL
            AND count BETWEEN 1 AND 1000000
            AND octet_length(ends) = 4 * count
            AND substring(ends FROM 4 * count - 3) = set_byte(set_byte(set_byte(
                E'\\x00000000', 0, octet_length(body)), 1, octet_length(body) >> 8), 2, octet_length(body) >> 16)
            AND octet_length(body) <= (q.settings ->> 'max_message_bytes')::integer
            AND NOT q.push_gated
        INTO partition_id, level, lane, queue, message_count, compressed, ordinary
        FROM penstock.queues q
        -- The lock keeps this a query of its own. A join, planned for small tables, looks for the name in all queues.
        CROSS JOIN LATERAL (
            SELECT n.partition_id, n.priority, n.lane_of FROM penstock.partitions n
            WHERE n.queue_id = q.queue_id AND n.name = partition_name
            FOR NO KEY UPDATE
        ) p
        WHERE q.name = queue_name;
        EXIT WHEN ordinary;
        IF FOUND THEN
            PERFORM pg_advisory_xact_lock_shared(penstock.queue_lock_class(), queue);
            SELECT q.push_gated, penstock.require_packed(
                q.name, (q.settings ->> 'max_message_bytes')::integer,
                count, body, ends, keys, key_ends, headers, header_ends
            )
            INTO gated, checked
            FROM penstock.queues q
            WHERE q.queue_id = queue;
            EXIT;
        END IF;
        PERFORM penstock.ensure_partitions(ARRAY[queue_name], ARRAY[partition_name]);
    END LOOP;

    -- New statements, hence new snapshots: under the locks they see every push, every segment and every group there is.
    SELECT
        s.base_offset + s.count, greatest(clock_timestamp(), s.created_at),
        -- Most groups are at the partition already. Of those that are not, the newest row; null of one that never was.
        ARRAY(
            SELECT j FROM penstock.consumer_groups g
            LEFT JOIN LATERAL (
                SELECT j.* FROM penstock.journal j
                WHERE j.group_id = g.group_id AND j.partition_id = partition_id
                ORDER BY j.version DESC
                LIMIT 1
            ) j ON true
            WHERE g.queue_id = queue AND coalesce(j.state, 'i') IN ('i', 'p')
        )
    INTO first_offset, created_at, asleep
    -- What newest_segment does; called, it would be one more query.
    FROM penstock.segments s
    WHERE s.partition_id = partition_id
    ORDER BY s.base_offset DESC
    LIMIT 1;
    IF NOT FOUND THEN
        first_offset := 0;
        created_at := clock_timestamp();
        asleep := ARRAY[NULL::penstock.journal];
    END IF;
    IF producer IS NOT NULL THEN
        -- Under the lock: whoever pushed this before has committed, or will never.
        INSERT INTO penstock.producers (producer, sequence, pushed_at, partition_id, first_offset, count)
        VALUES (producer, sequence, created_at, partition_id, first_offset, count)
        ON CONFLICT ON CONSTRAINT producers_pkey DO NOTHING;
        IF NOT FOUND THEN
            RETURN QUERY SELECT * FROM penstock.pushed_before(producer, sequence);
            RETURN;
        END IF;
    END IF;
    IF gated THEN
        PERFORM penstock.admit_push(ARRAY[partition_id], ARRAY[count]);
    END IF;
    INSERT INTO penstock.segments (
        partition_id, base_offset, created_at, count, bytes,
        body, body_compressed, ends, keys, key_ends, headers, header_ends
    )
    VALUES (
        partition_id, first_offset, created_at, count, penstock.packed_bytes(body, keys, headers),
        CASE WHEN NOT compressed THEN body END, CASE WHEN compressed THEN body END,
        ends, keys, key_ends, headers, header_ends
    );
    IF first_offset + count > penstock.offset_limit() THEN
        PERFORM penstock.refuse_full(partition_name);
    END IF;
    IF cardinality(asleep) > 0 THEN
        IF lane IS NOT NULL OR array_position(asleep, NULL::penstock.journal) IS NOT NULL THEN
            PERFORM penstock.wake_partitions(ARRAY[partition_id], ARRAY[first_offset]);
        ELSE
            -- The same, without looking once more.
            FOREACH last IN ARRAY asleep LOOP
                INSERT INTO penstock.journal (
                    group_id, partition_id, version, state, committed, claimed_to, skipped, ready_seq, acked_at
                ) VALUES (
                    last.group_id, partition_id, last.version + 1, 'r', last.committed, last.committed, last.skipped,
                    nextval('penstock.ready_seq'), last.acked_at
                )
                RETURNING ready_seq INTO entry;
                INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
                VALUES (last.group_id, level, entry, partition_id);
            END LOOP;
        END IF;
        -- Elsewhere nobody has to be told: whoever has the partition finds these messages after what it has.
        IF current_setting('penstock.hint', true) <> '' THEN
            PERFORM pg_notify('penstock_pushed', current_setting('penstock.hint')), set_config('penstock.hint', '', true);
        END IF;
    END IF;
    RETURN NEXT;
END
$$;
