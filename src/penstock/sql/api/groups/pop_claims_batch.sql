-- penstock.pop_claims_batch(queue_names, group_names, partition_names, max_messages, max_bytes, max_partitions,
--                           lease_times, consumers, auto_acks, lows, max_total)
--
-- Answers many pops in one call: the form in which the clients send pops that come at the same time. Requests that
-- name a partition go first. Then those of one group that take any partition share one walk along the ready list: the first
-- of them gets the partition that waited longest, the second the next one. In an ordered group they leave alone what
-- others of the batch name, and of several that name the same partition one wins. In a shared group the same partition
-- may serve several, with ranges that do not overlap. Groups do not see one another.
--
-- It never waits. A group that does not exist is therefore not made here: making one waits for the pushes under way, and
-- everybody else in the batch would wait too.
--
-- Parameters: parallel arrays, one entry per request, with the meaning they have in pop_claims; lows - each a text such
-- as '{5,7}', because arrays in an array would have to be of one length; max_total - after so many bytes the answer is
-- full.
-- Returns: `request` (which one, from 1) and the rows of pop_claims. A request without a row has nothing to get. One
-- with a row but no partition_id was not looked at, because its group does not exist or the answer was full: it must
-- be asked again, alone.
-- Calls: require_read_committed, ack_and_pop. Tables: queues, consumer_groups, partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.pop_claims_batch(
    queue_names     text[],
    group_names     text[],
    partition_names text[],
    max_messages    integer[],
    max_bytes       bigint[],
    max_partitions  integer[],
    lease_times     float8[],
    consumers       text[],
    auto_acks       boolean[],
    lows            text[],
    max_total       bigint DEFAULT 33554432
)
RETURNS TABLE (
    request integer,
    group_id integer, partition_id bigint, partition_of text, lease_id uuid, lease_until timestamptz,
    attempt smallint, claimed_from bigint, claimed_to bigint, entry_level integer, entry_seq bigint, shared boolean,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    wish     record;
    reader   record;
    named    boolean := array_position(partition_names, NULL) IS NOT NULL
                        AND EXISTS (SELECT 1 FROM unnest(partition_names) n WHERE n IS NOT NULL);
    passing  bigint[];
    wanted   integer;
    asked    integer;
    got      integer;
    turn     integer;
    share    integer;
    left_over bigint := max_total;
    before   bigint;
    begun    bigint;
BEGIN
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(group_names), cardinality(partition_names), cardinality(max_messages), cardinality(max_bytes),
        cardinality(max_partitions), cardinality(lease_times), cardinality(consumers), cardinality(auto_acks),
        cardinality(lows)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'the arrays of a batch of pops must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (1 <= ALL (max_messages) AND 1 <= ALL (max_bytes) AND 1 <= ALL (max_partitions)) IS NOT TRUE
       OR 0 >= ANY (lease_times) OR 604800 < ANY (lease_times)
    THEN
        RAISE EXCEPTION 'max_messages, max_bytes, max_partitions and lease_time must be above 0, and lease_time at most 604800'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF array_position(auto_acks, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'auto_ack is null but must be true or false' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_read_committed('pop');
    FOR wish IN
        -- Requests that are alike are one wish; those that name a partition come first.
        SELECT
            w.queue_name, w.group_name, w.partition_name, w.most, w.most_bytes, w.lease_time, w.consumer, w.auto_ack,
            w.low::bigint[] AS lows,
            array_agg(w.position::integer ORDER BY w.position) AS requests,
            array_agg(CASE WHEN w.partition_name IS NULL THEN w.partitions ELSE 1 END ORDER BY w.position) AS shares,
            sum(CASE WHEN w.partition_name IS NULL THEN w.partitions ELSE 1 END)::integer AS wanted
        FROM unnest(
            queue_names, group_names, partition_names, max_messages, max_bytes, max_partitions, lease_times,
            consumers, auto_acks, lows
        ) WITH ORDINALITY w (
            queue_name, group_name, partition_name, most, most_bytes, partitions, lease_time, consumer, auto_ack, low,
            position
        )
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
        ORDER BY w.partition_name IS NULL, min(w.position)
    LOOP
        SELECT q.queue_id, g.mode INTO reader
        FROM penstock.queues q
        JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
        WHERE q.name = wish.queue_name AND g.name = wish.group_name;
        IF NOT FOUND OR left_over <= 0 THEN
            partition_id := NULL;
            body := NULL;
            ends := NULL;
            keys := NULL;
            key_ends := NULL;
            headers := NULL;
            header_ends := NULL;
            FOREACH request IN ARRAY wish.requests LOOP
                RETURN NEXT;
            END LOOP;
            CONTINUE;
        END IF;
        passing := NULL;
        IF named AND wish.partition_name IS NULL AND reader.mode = 'ordered' THEN
            passing := ARRAY(
                SELECT p.partition_id
                FROM unnest(queue_names, group_names, partition_names) n (queue_name, group_name, partition_name)
                CROSS JOIN LATERAL (
                    SELECT p.partition_id FROM penstock.partitions p
                    WHERE p.queue_id = reader.queue_id AND p.name = n.partition_name
                    LIMIT 1
                ) p
                WHERE n.queue_name = wish.queue_name AND n.group_name = wish.group_name
            );
        END IF;
        wanted := wish.wanted;
        turn := 1;
        share := wish.shares[1];
        LOOP
            -- No more at once than could be the rest of a full answer.
            asked := greatest(1, least(wanted, left_over / wish.most_bytes));
            got := 0;
            before := NULL;
            FOR
                group_id, partition_id, partition_of, lease_id, lease_until, attempt, claimed_from, claimed_to,
                entry_level, entry_seq, shared, base_offset, count, created_at, run_skip, run_counts, run_times,
                body_start, body, ends, key_start, keys, key_ends, header_start, headers, header_ends
            IN
                SELECT
                    c.group_id, c.partition_id, c.partition_of, c.lease_id, c.lease_until, c.attempt, c.claimed_from,
                    c.claimed_to, c.entry_level, c.entry_seq, c.shared, c.base_offset, c.count, c.created_at, c.run_skip,
                    c.run_counts, c.run_times, c.body_start, c.body, c.ends, c.key_start, c.keys, c.key_ends,
                    c.header_start, c.headers, c.header_ends
                FROM penstock.ack_and_pop(
                    NULL, NULL, NULL, NULL, NULL, wish.queue_name, wish.group_name, wish.partition_name, wish.most,
                    wish.most_bytes, asked, wish.lease_time, wish.consumer, wish.auto_ack, wish.lows,
                    passing => passing, first_use => true
                ) c
            LOOP
                IF (partition_id, claimed_from) IS DISTINCT FROM (before, begun) THEN
                    before := partition_id;
                    begun := claimed_from;
                    got := got + 1;
                    IF share = 0 THEN
                        turn := turn + 1;
                        share := wish.shares[turn];
                    END IF;
                    share := share - 1;
                END IF;
                request := wish.requests[turn];
                left_over := left_over - octet_length(body) - coalesce(octet_length(headers), 0);
                RETURN NEXT;
            END LOOP;
            wanted := wanted - got;
            EXIT WHEN wanted = 0 OR got = 0 OR left_over <= 0;
            -- An ordered group has given each partition that it had. A shared one has carved new ranges meanwhile.
            EXIT WHEN reader.mode = 'ordered' AND (got < asked OR wish.partition_name IS NOT NULL);
        END LOOP;
        IF left_over <= 0 THEN
            partition_id := NULL;
            body := NULL;
            ends := NULL;
            keys := NULL;
            key_ends := NULL;
            headers := NULL;
            header_ends := NULL;
            FOREACH request IN ARRAY wish.requests[turn + 1 :] LOOP
                RETURN NEXT;
            END LOOP;
        END IF;
    END LOOP;
END
$$;
