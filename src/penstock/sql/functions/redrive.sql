-- penstock.redrive(queue_name, group_name, wanted_reason, wanted_ids, max_rows)
--
-- Delivers dead letters again, a chunk at a time, to the group that failed and to no other: they move to that group's
-- private lane, in one transaction. Each has its original id in the header penstock-origin, and the name of the partition
-- it was pushed to in penstock-partition; its attempts begin anew. One that failed with rows of a flow that are made of
-- several messages has their ids in penstock-rows: the flow makes these rows of it, and no others.
--
-- Parameters: those of take_dead_letters.
-- Returns: how many; call again until it is 0.
-- Calls: take_dead_letters, push. Tables: queues (read), partitions (read, insert).
CREATE OR REPLACE FUNCTION penstock.redrive(
    queue_name text, group_name text DEFAULT NULL, wanted_reason text DEFAULT NULL, wanted_ids bigint[] DEFAULT NULL,
    max_rows integer DEFAULT 1000
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    queue  integer := penstock.find_queue(queue_name);
    letter record;
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
            ) || coalesce(d.headers, '{}') || jsonb_strip_nulls(jsonb_build_object(
                'penstock-rows', array_to_string(d.row_ids, ',')
            )) ORDER BY d.dead_letter_id) AS headers
        FROM penstock.take_dead_letters(queue_name, group_name, wanted_reason, wanted_ids, max_rows) d
        GROUP BY d.group_id
        ORDER BY d.group_id
    LOOP
        INSERT INTO penstock.partitions (queue_id, name, lane_of)
        VALUES (queue, letter.lane, letter.group_id)
        ON CONFLICT DO NOTHING;
        PERFORM penstock.push(queue_name, letter.payloads, letter.lane, letter.keys, letter.headers);
        taken := taken + letter.letters;
    END LOOP;
    RETURN taken;
END
$$;
