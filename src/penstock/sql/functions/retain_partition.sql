-- penstock.retain_partition(partition_id, settings, max_segments)
--
-- Drops what a queue's retention says: whole segments older than retention_time, and the oldest ones of a
-- partition that holds more than retention_bytes. What a group has still to read stays, unless the queue's
-- retention_rule is drop_and_count: then the group goes on at the floor and counts what it missed. So does what waits
-- for the archive. At most max_segments a call, so that no transaction is long.
--
-- Parameters: settings - the queue's; max_segments - how many at most.
-- Returns: how many segments and messages were dropped.
-- Calls: consumed_to, archive_bound, drop_below. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.retain_partition(
    partition_id bigint, settings jsonb, max_segments integer,
    OUT dropped_segments bigint, OUT dropped_messages bigint
)
LANGUAGE plpgsql
AS $$
DECLARE
    oldest timestamptz := clock_timestamp() - make_interval(secs => (settings ->> 'retention_time')::numeric::float8);
    cutoff bigint;
BEGIN
    -- Times never go back, so the segments that are too old are the first ones.
    SELECT max(s.base_offset + s.count) INTO cutoff
    FROM (
        SELECT s.base_offset, s.count, s.created_at FROM penstock.segments s
        WHERE s.partition_id = retain_partition.partition_id
        ORDER BY s.base_offset
        LIMIT max_segments
    ) s
    WHERE s.created_at < oldest;
    IF settings ->> 'retention_bytes' IS NOT NULL THEN
        SELECT greatest(cutoff, max(s.base_offset + s.count)) INTO cutoff
        FROM (
            SELECT s.base_offset, s.count, sum(s.bytes) OVER (ORDER BY s.base_offset DESC) AS held
            FROM penstock.segments s
            WHERE s.partition_id = retain_partition.partition_id
        ) s
        WHERE s.held > (settings ->> 'retention_bytes')::bigint;
    END IF;
    IF settings ->> 'retention_rule' = 'keep_until_consumed' THEN
        -- least() passes over nulls: where nothing is to be dropped, all that was consumed would be.
        cutoff := least(coalesce(cutoff, 0), penstock.consumed_to(partition_id));
    END IF;
    cutoff := least(coalesce(cutoff, 0), penstock.archive_bound(partition_id, settings));
    SELECT d.dropped_segments, d.dropped_messages INTO dropped_segments, dropped_messages
    FROM penstock.drop_below(partition_id, cutoff, max_segments) d;
END
$$;
