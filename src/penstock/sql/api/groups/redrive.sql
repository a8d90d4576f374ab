-- penstock.redrive(queue_name, group_name, wanted_reason, wanted_ids, max_rows, counted)
--
-- Delivers dead letters again, a chunk at a time, only to the group that failed: they move to that group's private
-- lane, in one transaction. Each has its original id in the header penstock-origin, and the name of its original
-- partition in penstock-partition; its attempts start again. A dead letter that failed with rows of a flow that are
-- made of several messages has their ids in penstock-rows: the flow makes only these rows of it.
--
-- Parameters: those of take_dead_letters; counted - whether to count it in the header penstock-redrives, as rules do:
-- it is kept when the message becomes a dead letter again, and when it is redriven by hand.
-- Returns: the number redriven; call it again until it returns 0.
-- Calls: take_dead_letters, pack_messages, lock_partitions, append_segments, find_queue, require_read_committed,
-- use_lock_timeout, message_id, redrives_of. Tables: partitions (read, insert).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.redrive(
    queue_name text, group_name text DEFAULT NULL, wanted_reason text DEFAULT NULL, wanted_ids bigint[] DEFAULT NULL,
    max_rows integer DEFAULT 1000, counted boolean DEFAULT false
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    queue  integer := penstock.find_queue(queue_name);
    letter record;
    packed record;
    target bigint;
    taken  bigint := 0;
BEGIN
    PERFORM penstock.require_read_committed('redrive');
    PERFORM penstock.use_lock_timeout();
    FOR letter IN
        SELECT
            d.group_id, '~redrive/' || d.group_id AS lane, count(*) AS letters,
            array_agg(d.payload ORDER BY d.dead_letter_id) AS payloads,
            array_agg(d.key ORDER BY d.dead_letter_id) AS keys,
            array_agg(jsonb_strip_nulls(jsonb_build_object('penstock-partition', (
                SELECT p.name FROM penstock.partitions p WHERE p.partition_id = d.partition_id
            ))) || jsonb_build_object(
                'penstock-origin', penstock.message_id(d.partition_id, d.message_offset, d.created_at)::text
            ) || CASE
                -- Outside of lanes these headers are the sender's own, and say nothing.
                WHEN EXISTS (
                    SELECT FROM penstock.partitions p WHERE p.partition_id = d.partition_id AND p.lane_of IS NOT NULL
                ) THEN coalesce(d.headers, '{}')
                ELSE coalesce(d.headers, '{}') - ARRAY['penstock-partition', 'penstock-origin', 'penstock-rows', 'penstock-redrives']
            END || CASE
                WHEN counted THEN jsonb_build_object(
                    'penstock-redrives', (penstock.redrives_of(d.partition_id, d.headers) + 1)::text
                )
                ELSE '{}'
            END || jsonb_strip_nulls(jsonb_build_object(
                'penstock-rows', array_to_string(d.row_ids, ',')
            )) ORDER BY d.dead_letter_id) AS headers
        FROM penstock.take_dead_letters(queue_name, group_name, wanted_reason, wanted_ids, max_rows) d
        GROUP BY d.group_id
        ORDER BY d.group_id
    LOOP
        INSERT INTO penstock.partitions (queue_id, name, lane_of)
        VALUES (queue, letter.lane, letter.group_id)
        ON CONFLICT DO NOTHING;
        -- Their limits were checked when they were pushed: one that was lowered since must not keep them dead.
        SELECT
            array_agg(p.count ORDER BY p.nth) AS counts,
            array_agg(p.body ORDER BY p.nth) AS bodies, array_agg(p.ends ORDER BY p.nth) AS ends,
            array_agg(p.keys ORDER BY p.nth) AS keys, array_agg(p.key_ends ORDER BY p.nth) AS key_ends,
            array_agg(p.headers ORDER BY p.nth) AS headers, array_agg(p.header_ends ORDER BY p.nth) AS header_ends
        INTO packed
        FROM penstock.pack_messages(letter.payloads, letter.lane, letter.keys, letter.headers, NULL, 1)
            WITH ORDINALITY p (place, count, body, ends, keys, key_ends, headers, header_ends, positions, nth);
        target := (penstock.lock_partitions(ARRAY[queue_name], ARRAY[letter.lane]))[1];
        -- A new statement, hence a new snapshot: under the lock it sees every segment there is.
        PERFORM penstock.append_segments(
            array_fill(target, ARRAY[cardinality(packed.counts)]), packed.counts, packed.bodies, packed.ends,
            packed.keys, packed.key_ends, packed.headers, packed.header_ends
        );
        taken := taken + letter.letters;
    END LOOP;
    RETURN taken;
END
$$;
