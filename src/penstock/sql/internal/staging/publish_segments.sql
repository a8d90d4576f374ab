-- penstock.publish_segments(stage_ids)
--
-- Assigns partitions and offsets to staged segments. The caller holds the locks of the stages and removes them. The
-- cost is per segment; the payload is not touched.
--
-- Parameters: stage_ids - in the order of their messages.
-- Returns: the number of segments and messages.
-- Calls: lock_partitions, wake_partitions, newest_segment. Tables: staged (read), segments (update).
CREATE OR REPLACE FUNCTION penstock.publish_segments(stage_ids bigint[], OUT segments bigint, OUT messages bigint)
LANGUAGE plpgsql
SET enable_bitmapscan = off
AS $$
DECLARE
    queues       text[];
    names        text[];
    targets      bigint[];
    now_here     timestamptz;
    heads        bigint[];
    times        timestamptz[];
    ends         bigint[];
    place_of     jsonb;
    part         record;
    counts       integer[];
    places       integer[];
    base_offsets bigint[];
    moved        bigint;
BEGIN
    -- Every partition once. Below it is known by its position in these arrays.
    SELECT
        array_agg(d.queue_name ORDER BY d.partition_name COLLATE "C", d.queue_name COLLATE "C"),
        array_agg(d.partition_name ORDER BY d.partition_name COLLATE "C", d.queue_name COLLATE "C")
    INTO queues, names
    FROM (
        SELECT DISTINCT u.queue_name, u.partition_name
        FROM penstock.staged s
        CROSS JOIN LATERAL unnest(s.queue_names, s.partition_names) u (queue_name, partition_name)
        WHERE s.stage_id = ANY (stage_ids)
    ) d;
    segments := 0;
    IF queues IS NULL THEN
        messages := 0;
        RETURN;
    END IF;
    targets := penstock.lock_partitions(queues, names);

    -- A new statement, hence a new snapshot: under the locks it sees every segment there is.
    now_here := clock_timestamp();
    SELECT
        array_agg(coalesce(newest.head_offset, 0) ORDER BY w.position),
        array_agg(greatest(now_here, newest.created_at) ORDER BY w.position)
    INTO heads, times
    FROM unnest(targets) WITH ORDINALITY w (target, position)
    LEFT JOIN LATERAL penstock.newest_segment(w.target) newest ON true;
    ends := heads;
    -- A join by name would compare each segment with each partition whenever the planner takes them for few, and it
    -- knows neither number. No name holds a control character, so one keeps two names apart.
    place_of := (
        SELECT jsonb_object_agg(w.queue_name || chr(1) || w.partition_name, w.position)
        FROM unnest(queues, names) WITH ORDINALITY w (queue_name, partition_name, position)
    );
    FOR part IN
        SELECT s.*
        FROM unnest(stage_ids) WITH ORDINALITY w (stage_id, position)
        JOIN penstock.staged s ON s.stage_id = w.stage_id
        ORDER BY w.position, s.first_ordinal
    LOOP
        counts := part.counts;
        places := ARRAY(
            SELECT (place_of ->> (u.queue_name || chr(1) || u.partition_name))::integer
            FROM unnest(part.queue_names, part.partition_names) WITH ORDINALITY u (queue_name, partition_name, position)
            ORDER BY u.position
        );
        base_offsets := places;
        FOR number IN 1..cardinality(places) LOOP
            base_offsets[number] := ends[places[number]];
            ends[places[number]] := ends[places[number]] + counts[number];
        END LOOP;
        -- One range of the index, whatever the planner believes of the table.
        UPDATE penstock.segments g
        SET
            partition_id = targets[places[g.base_offset - part.first_ordinal + 1]],
            base_offset = base_offsets[g.base_offset - part.first_ordinal + 1],
            created_at = times[places[g.base_offset - part.first_ordinal + 1]]
        WHERE g.partition_id = -part.stage_id
          AND g.base_offset >= part.first_ordinal AND g.base_offset < part.first_ordinal + cardinality(places);
        GET DIAGNOSTICS moved = ROW_COUNT;
        IF moved <> cardinality(places) THEN
            RAISE EXCEPTION 'stage % has % segments from % on, and should have %',
                part.stage_id, moved, part.first_ordinal, cardinality(places) USING ERRCODE = 'data_corrupted';
        END IF;
        segments := segments + moved;
    END LOOP;
    messages := (SELECT sum(e) FROM unnest(ends) e) - (SELECT sum(h) FROM unnest(heads) h);
    PERFORM penstock.wake_partitions(targets, heads);
END
$$;
