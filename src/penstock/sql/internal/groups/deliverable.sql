-- penstock.deliverable(target, committed, settings)
--
-- What of a partition may be handed out now: from `committed`, or the floor where retention has passed it, up to the
-- head, or to where a delay ends. In a quiet period nothing may.
--
-- Parameters: target - the partition; committed - the group's position; settings - the group's.
-- Returns: the range (empty when stop_offset <= start_offset), the head, and, where messages wait for a delay or
-- a quiet period, when to look again.
-- Calls: offset_at, partition_span, time_in_runs, segment_slices, newest_segment. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.deliverable(
    target bigint, committed bigint, settings jsonb,
    OUT start_offset bigint, OUT stop_offset bigint, OUT head_offset bigint, OUT due_at timestamptz
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    newest_at timestamptz;
    first_at  timestamptz;
    delay     float8 := (settings ->> 'delay')::float8;
    quiet     float8 := (settings ->> 'quiet_period')::float8;
BEGIN
    SELECT s.head_offset, s.created_at INTO head_offset, newest_at FROM penstock.newest_segment(target) s;
    head_offset := coalesce(head_offset, 0);
    start_offset := committed;
    stop_offset := head_offset;
    IF head_offset <= committed THEN
        RETURN;
    END IF;
    -- Usually the next message is there; only where it is not, retention has been here.
    PERFORM 1 FROM (
        SELECT s.base_offset + s.count AS next_offset, s.ends FROM penstock.segments s
        WHERE s.partition_id = target AND s.base_offset <= committed
        ORDER BY s.base_offset DESC
        LIMIT 1
    ) s
    WHERE s.next_offset > committed AND s.ends IS NOT NULL;
    IF NOT FOUND THEN
        SELECT greatest(committed, s.floor_offset) INTO start_offset FROM penstock.partition_span(target) s;
    END IF;
    IF quiet > 0 AND newest_at + make_interval(secs => quiet) > clock_timestamp() THEN
        stop_offset := start_offset;
        due_at := newest_at + make_interval(secs => quiet);
    ELSIF delay > 0 AND start_offset < head_offset THEN
        stop_offset := penstock.offset_at(target, clock_timestamp() - make_interval(secs => delay));
        IF stop_offset <= start_offset THEN
            SELECT penstock.time_in_runs(s.created_at, s.run_counts, s.run_times, s.run_skip) INTO first_at
            FROM penstock.segment_slices(target, start_offset, start_offset + 1) s;
            due_at := first_at + make_interval(secs => delay);
        END IF;
    END IF;
END
$$;
