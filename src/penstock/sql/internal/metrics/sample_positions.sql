-- penstock.sample_positions(group_ids, partition_ids, states, committed, claimed, stops)
--
-- Adds some pieces of work to the sample that is being taken: what is not acknowledged, what of that is not handed out,
-- and the oldest message.
--
-- Parameters: parallel arrays, an entry per piece: state - r(eady), c(laimed) or t(imed); committed - the first offset
-- that is not done; claimed - the first one that was not handed out; stops - the end of the piece, null for the head of
-- the partition.
-- Returns: nothing.
-- Calls: partition_span, time_in_runs. Tables: segments (read), sampled (insert, update).
CREATE OR REPLACE FUNCTION penstock.sample_positions(
    group_ids integer[], partition_ids bigint[], states "char"[], committed bigint[], claimed bigint[], stops bigint[]
)
RETURNS void
LANGUAGE sql
AS $$
    WITH pieces AS MATERIALIZED (
        SELECT
            u.group_id, u.partition_id, u.state, greatest(u.committed, s.floor_offset) AS start,
            greatest(u.claimed, s.floor_offset) AS claimed, coalesce(u.stop, s.head_offset) AS stop
        FROM unnest(group_ids, partition_ids, states, committed, claimed, stops)
            u (group_id, partition_id, state, committed, claimed, stop)
        CROSS JOIN LATERAL penstock.partition_span(u.partition_id) s
    ), timed AS (
        SELECT p.*, CASE WHEN p.stop > p.start THEN (
            SELECT penstock.time_in_runs(g.created_at, g.run_counts, g.run_times, (p.start - g.base_offset)::integer)
            FROM penstock.segments g
            WHERE g.partition_id = p.partition_id AND g.base_offset <= p.start
            ORDER BY g.base_offset DESC
            LIMIT 1
        ) END AS oldest_at
        FROM pieces p
    ), totals AS (
        SELECT
            t.group_id, sum(greatest(t.stop - t.start, 0))::bigint AS lag,
            sum(greatest(t.stop - greatest(t.claimed, t.start), 0))::bigint AS depth,
            count(*) FILTER (WHERE t.state = 'r') AS ready, count(*) FILTER (WHERE t.state = 'c') AS claimed,
            count(*) FILTER (WHERE t.state = 't') AS waiting,
            (array_agg(t.oldest_at ORDER BY t.oldest_at) FILTER (WHERE t.oldest_at IS NOT NULL))[1] AS oldest_at,
            (array_agg(t.partition_id ORDER BY t.oldest_at) FILTER (WHERE t.oldest_at IS NOT NULL))[1] AS oldest_partition,
            (array_agg(t.start ORDER BY t.oldest_at) FILTER (WHERE t.oldest_at IS NOT NULL))[1] AS oldest_offset
        FROM timed t
        GROUP BY t.group_id
    )
    INSERT INTO penstock.sampled AS d (
        group_id, lag, depth, ready, claimed, waiting, oldest_at, oldest_partition, oldest_offset
    )
    SELECT t.* FROM totals t
    ON CONFLICT (group_id) DO UPDATE SET
        lag = d.lag + excluded.lag, depth = d.depth + excluded.depth, ready = d.ready + excluded.ready,
        claimed = d.claimed + excluded.claimed, waiting = d.waiting + excluded.waiting,
        oldest_at = least(d.oldest_at, excluded.oldest_at),
        oldest_partition = CASE
            WHEN d.oldest_at <= excluded.oldest_at OR excluded.oldest_at IS NULL THEN d.oldest_partition
            ELSE excluded.oldest_partition
        END,
        oldest_offset = CASE
            WHEN d.oldest_at <= excluded.oldest_at OR excluded.oldest_at IS NULL THEN d.oldest_offset
            ELSE excluded.oldest_offset
        END
$$;
