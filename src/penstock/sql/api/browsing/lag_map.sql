-- penstock.lag_map(queue_name, group_name, cells, max_look)
--
-- Says where the lag of a group sits: its partitions, in the order in which they were created, are dealt into cells.
-- It visits at most `max_look` partitions that the group has work in.
--
-- Parameters: the names; cells - how many, up to 500; max_look - up to 100000.
-- Returns: a row per cell that has lag: its number from 1 on, how many partitions of it have lag, their lag together, and
-- the partition with the largest lag. looked - how many partitions were visited.
-- Calls: find_group, pending_partitions. Tables: partitions (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.lag_map(
    queue_name text, group_name text, cells integer DEFAULT 120, max_look integer DEFAULT 20000
)
RETURNS TABLE (cell integer, partitions bigint, lag bigint, worst text, worst_lag bigint, looked bigint)
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
    member integer := penstock.find_group(queue_name, group_name);
BEGIN
    IF (cells BETWEEN 1 AND 500 AND max_look BETWEEN 1 AND 100000) IS NOT TRUE THEN
        RAISE EXCEPTION 'cells is % and must be from 1 to 500; max_look is % and must be from 1 to 100000', cells, max_look
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN QUERY
    SELECT
        w.cell, count(*), sum(w.lag)::bigint,
        (array_agg(CASE WHEN p.lane_of IS NULL THEN p.name ELSE '(redriven)' END ORDER BY w.lag DESC, p.name))[1],
        max(w.lag), max(w.looked)
    FROM (
        SELECT
            w.partition_id, w.lag, count(*) OVER () AS looked,
            ntile(cells) OVER (ORDER BY w.partition_id) AS cell
        FROM penstock.pending_partitions(member, max_look) w
    ) w
    JOIN penstock.partitions p ON p.partition_id = w.partition_id
    WHERE w.lag > 0
    GROUP BY w.cell
    ORDER BY w.cell;
END
$$;
