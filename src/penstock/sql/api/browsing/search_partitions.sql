-- penstock.search_partitions(queue_name, group_name, search, sort_by, after_name, skip, max_rows, max_look)
--
-- Finds partitions of a queue for somebody who looks at them, a page at a time. By name or by the time of the newest
-- message it visits at most `max_look` partitions from `after_name` on; by lag at most so many that the group has work in.
-- So it costs the same with a thousand partitions and with a million, and it says how far it looked.
--
-- Parameters: group_name - of which group to tell the positions, null for none; search - a part of the name, in any
-- case, or null; sort_by - 'name', 'newest' or 'lag', which needs a group; after_name - begin behind this name; skip - how
-- many to leave out, for 'newest' and 'lag'; max_rows - up to 1000; max_look - up to 100000.
-- Returns: a row per partition. looked - how many were visited; looked_to - the name of the last one if there may be
-- more behind it, by name and newest. Positions and state are null where the group has not begun the partition. Of the
-- last page there may be one row without a name, which says how far it looked.
-- Calls: find_queue, find_group, pending_partitions, partition_span, newest_state, state_name. Tables: partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.search_partitions(
    queue_name text, group_name text DEFAULT NULL, search text DEFAULT NULL, sort_by text DEFAULT 'name',
    after_name text DEFAULT NULL, skip integer DEFAULT 0, max_rows integer DEFAULT 50, max_look integer DEFAULT 20000
)
RETURNS TABLE (
    name text, partition_id bigint, priority smallint, created_at timestamptz, floor_offset bigint, head_offset bigint,
    newest_at timestamptz, committed bigint, lag bigint, state text, attempt smallint, due_at timestamptz,
    last_error text, looked integer, looked_to text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    wanted integer := penstock.find_queue(queue_name);
    member integer := CASE WHEN group_name IS NOT NULL THEN penstock.find_group(queue_name, group_name) END;
    part   text := lower(coalesce(search, ''));
BEGIN
    IF (sort_by IN ('name', 'newest', 'lag') AND (sort_by <> 'lag' OR member IS NOT NULL)) IS NOT TRUE THEN
        RAISE EXCEPTION 'sort_by is % and must be name, newest or, with a group, lag', coalesce(sort_by, 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (max_rows BETWEEN 1 AND 1000 AND max_look BETWEEN 1 AND 100000 AND skip >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'max_rows is % and must be from 1 to 1000; max_look is % and must be from 1 to 100000; skip is %',
            max_rows, max_look, skip
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF sort_by = 'lag' THEN
        RETURN QUERY
        SELECT
            CASE WHEN p.lane_of IS NULL THEN p.name ELSE '(redriven)' END, w.partition_id, p.priority, p.created_at,
            w.floor_offset, w.head_offset, w.newest_at, w.committed, w.lag, penstock.state_name(w.state), w.attempt,
            w.due_at, w.last_error, (count(*) OVER ())::integer, NULL::text
        FROM penstock.pending_partitions(member, max_look) w
        -- OFFSET 0: a plan made while there were few partitions would visit all of them instead.
        CROSS JOIN LATERAL (SELECT * FROM penstock.partitions p WHERE p.partition_id = w.partition_id OFFSET 0) p
        WHERE part = '' OR position(part IN lower(p.name)) > 0
        ORDER BY w.lag DESC, p.name
        OFFSET skip LIMIT max_rows;
        RETURN;
    END IF;
    IF sort_by = 'newest' THEN
        RETURN QUERY
        SELECT
            f.name, f.partition_id, f.priority, f.created_at, f.floor_offset, f.head_offset, f.newest_at,
            CASE WHEN j.version IS NOT NULL THEN greatest(j.committed, f.floor_offset) END,
            CASE WHEN j.version IS NOT NULL THEN greatest(f.head_offset - greatest(j.committed, f.floor_offset), 0) END,
            penstock.state_name(j.state), j.attempt, j.due_at, j.last_error, f.looked, f.looked_to
        FROM (
            SELECT
                p.name, p.partition_id, p.priority, p.created_at, s.floor_offset, s.head_offset, s.newest_at,
                (count(*) OVER ())::integer AS looked,
                CASE WHEN count(*) OVER () = max_look THEN max(p.name) OVER () END AS looked_to
            FROM (
                SELECT * FROM penstock.partitions p
                WHERE p.queue_id = wanted AND (after_name IS NULL OR p.name > after_name)
                ORDER BY p.name
                LIMIT max_look
            ) p
            CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s
            WHERE p.lane_of IS NULL AND (part = '' OR position(part IN lower(p.name)) > 0)
            ORDER BY s.newest_at DESC NULLS LAST, p.name
            OFFSET skip LIMIT max_rows
        ) f
        LEFT JOIN LATERAL penstock.newest_state(member, f.partition_id) j ON member IS NOT NULL;
        RETURN;
    END IF;
    -- By name: the page ends with its rows or when enough was looked at, and the next one begins there.
    RETURN QUERY
    WITH seen AS MATERIALIZED (
        SELECT p.*, row_number() OVER (ORDER BY p.name) AS nth
        FROM (
            SELECT * FROM penstock.partitions p
            WHERE p.queue_id = wanted AND (after_name IS NULL OR p.name > after_name)
            ORDER BY p.name
            LIMIT max_look
        ) p
    ), page AS MATERIALIZED (
        SELECT * FROM seen p
        WHERE p.lane_of IS NULL AND (part = '' OR position(part IN lower(p.name)) > 0)
        ORDER BY p.nth
        LIMIT max_rows
    ), reach AS (
        SELECT
            CASE WHEN (SELECT count(*) FROM page) = max_rows THEN (SELECT max(p.nth) FROM page p) ELSE count(*) END AS looked,
            CASE
                WHEN (SELECT count(*) FROM page) = max_rows THEN (SELECT p.name FROM page p ORDER BY p.nth DESC LIMIT 1)
                WHEN count(*) = max_look THEN (SELECT s.name FROM seen s ORDER BY s.nth DESC LIMIT 1)
            END AS looked_to
        FROM seen
    )
    SELECT
        p.name, p.partition_id, p.priority, p.created_at, s.floor_offset, s.head_offset, s.newest_at,
        CASE WHEN j.version IS NOT NULL THEN greatest(j.committed, s.floor_offset) END,
        CASE WHEN j.version IS NOT NULL THEN greatest(s.head_offset - greatest(j.committed, s.floor_offset), 0) END,
        penstock.state_name(j.state), j.attempt, j.due_at, j.last_error, r.looked::integer, r.looked_to
    FROM reach r
    LEFT JOIN page p ON true
    LEFT JOIN LATERAL penstock.partition_span(p.partition_id) s ON p.partition_id IS NOT NULL
    LEFT JOIN LATERAL penstock.newest_state(member, p.partition_id) j ON member IS NOT NULL
    ORDER BY p.nth;
END
$$;
