-- penstock.push_segments(queue_names, partition_names, counts, bodies, ends, keys, key_ends, headers, header_ends,
--                        producer, sequence)
--
-- Appends packed segments to any number of partitions of any number of queues, in one transaction: the form that the
-- clients use. Queues and partitions are created on first use. Segments of one partition keep the order in which they
-- are given.
--
-- Locks, in this order: new names (sorted), then partitions by id (FOR NO KEY UPDATE, until the end of the caller's
-- transaction). Two transactions that push twice, to the same partitions in another order, can deadlock; PostgreSQL
-- then ends one of them with 40P01. A lock that is not granted within `penstock.lock_timeout` (default 10 s) is
-- 55P03. Both change nothing and may be retried, and so may 40001, which a REPEATABLE READ or SERIALIZABLE caller
-- gets if somebody pushed after its snapshot.
--
-- Parameters: parallel arrays, one entry per segment, packed as in the table `segments`; null for no keys or no
-- headers. If some values are null, a byte per message follows the ends (see null_flags). producer and sequence - who
-- pushes, and its number for this call: a call that is repeated within an hour, because its answer was lost, gets the
-- first answer and stores nothing. Null for calls that are not repeated, or that are part of a larger transaction.
-- Returns: one row per segment, in the order given: its partition, its first offset and the time of its messages.
-- Calls: lock_partitions, require_segments, admit_push, append_numbered, pushed_before, use_lock_timeout. Tables: producers
-- (insert).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.push_segments(
    queue_names     text[],
    partition_names text[],
    counts          integer[],
    bodies          bytea[],
    ends            bytea[],
    keys            bytea[] DEFAULT NULL,
    key_ends        bytea[] DEFAULT NULL,
    headers         bytea[] DEFAULT NULL,
    header_ends     bytea[] DEFAULT NULL,
    producer        uuid    DEFAULT NULL,
    sequence        bigint  DEFAULT NULL
)
RETURNS TABLE (partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    targets bigint[];
    stored  record;
    gated   boolean;
BEGIN
    IF coalesce(cardinality(queue_names), 0) = 0 THEN
        RAISE EXCEPTION 'an empty push: give at least one message' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(partition_names), cardinality(counts), cardinality(bodies), cardinality(ends)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'queue_names, partition_names, counts, bodies and ends must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.use_lock_timeout();
    targets := penstock.lock_partitions(queue_names, partition_names);
    gated := penstock.require_segments(targets, counts, bodies, ends, keys, key_ends, headers, header_ends);
    -- New statements, hence new snapshots: under the locks they see every push and every segment there is.
    IF producer IS NULL THEN
        IF gated THEN
            PERFORM penstock.admit_push(targets, counts);
        END IF;
        RETURN QUERY SELECT * FROM penstock.append_numbered(
            targets, counts, bodies, ends, keys, key_ends, headers, header_ends
        );
        RETURN;
    END IF;
    RETURN QUERY SELECT * FROM penstock.pushed_before(producer, sequence);
    IF FOUND THEN
        RETURN;
    END IF;
    IF gated THEN
        PERFORM penstock.admit_push(targets, counts);
    END IF;
    SELECT
        array_agg(a.first_offset ORDER BY a.nth) AS offsets, array_agg(a.created_at ORDER BY a.nth) AS times
    INTO stored
    FROM penstock.append_numbered(
        targets, counts, bodies, ends, keys, key_ends, headers, header_ends
    ) WITH ORDINALITY a (partition_id, first_offset, message_count, created_at, nth);
    INSERT INTO penstock.producers (producer, sequence, pushed_at, partition_ids, first_offsets, counts, times)
    VALUES (producer, sequence, clock_timestamp(), targets, stored.offsets, counts, stored.times);
    RETURN QUERY SELECT * FROM unnest(targets, stored.offsets, counts, stored.times);
END
$$;
