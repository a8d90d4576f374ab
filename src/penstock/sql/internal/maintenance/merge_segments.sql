-- penstock.merge_segments(partition_id, min_segments, since)
--
-- Merges a run of small segments into one, so that messages pushed one at a time read like a batch. Every message
-- keeps its time and id. The newest segment is not merged (pushes read it), and a merged one is never merged again
-- (so each byte is rewritten at most once). The result is an update of the first row, because an insert would look
-- like a push.
--
-- Parameters: min_segments - the smallest number to merge; since - when a call last found nothing more to merge:
-- older segments below one that cannot be merged are not checked again.
-- Returns: the number of segments merged into one; 0 if there is nothing to do.
-- Calls: end_at, int32_pack, null_flags, newest_segment. Tables: segments (lock, update, delete).
CREATE OR REPLACE FUNCTION penstock.merge_segments(
    partition_id bigint, min_segments integer DEFAULT 64, since timestamptz DEFAULT '-infinity'
)
RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    newest bigint;
    low    bigint;
    run    bigint[];
    locked integer;
    merged record;
BEGIN
    newest := (SELECT s.base_offset FROM penstock.newest_segment(merge_segments.partition_id) s);
    low := (
        SELECT s.base_offset FROM penstock.segments s
        WHERE s.partition_id = merge_segments.partition_id AND s.base_offset < newest AND s.created_at < since
          AND (s.run_counts IS NULL AND s.ends IS NOT NULL AND s.bytes < 16384 AND s.count < 100) IS NOT TRUE
        ORDER BY s.base_offset DESC
        LIMIT 1
    );
    -- The lowest run of small ones that is long enough, or as much of it as one segment may hold.
    SELECT r.run INTO run
    FROM (
        SELECT array_agg(s.base_offset ORDER BY s.base_offset) AS run
        FROM (
            SELECT
                s.base_offset, s.stretch,
                sum(s.bytes) OVER upto AS bytes, sum(s.count) OVER upto AS count
            FROM (
                SELECT
                    s.base_offset, s.count, s.bytes, s.small,
                    count(*) FILTER (WHERE NOT s.small) OVER (ORDER BY s.base_offset) AS stretch
                FROM (
                    SELECT
                        s.base_offset, s.count, s.bytes,
                        s.run_counts IS NULL AND s.ends IS NOT NULL AND s.bytes < 16384 AND s.count < 100 AS small
                    FROM penstock.segments s
                    WHERE s.partition_id = merge_segments.partition_id
                      AND s.base_offset >= coalesce(low, 0) AND s.base_offset < newest
                ) s
            ) s
            WHERE s.small
            WINDOW upto AS (PARTITION BY s.stretch ORDER BY s.base_offset)
        ) s
        WHERE s.bytes <= 1048576 AND s.count <= 10000
        GROUP BY s.stretch
    ) r
    WHERE cardinality(r.run) >= greatest(min_segments, 2)
    ORDER BY r.run[1]
    LIMIT 1;
    IF run IS NULL THEN
        RETURN 0;
    END IF;

    PERFORM 1 FROM penstock.segments s
    WHERE s.partition_id = merge_segments.partition_id AND s.base_offset = ANY (run)
    ORDER BY s.base_offset
    FOR UPDATE;
    GET DIAGNOSTICS locked = ROW_COUNT;
    IF locked <> cardinality(run) THEN
        RETURN 0; -- a purge was here first
    END IF;

    SELECT
        sum(s.count)::integer AS count,
        sum(s.bytes)::integer AS bytes,
        max(s.created_at) AS created_at,
        bool_or(s.body_compressed IS NOT NULL) AS compressed,
        string_agg(s.value, '' ORDER BY s.base_offset) AS body,
        string_agg(s.keys, '' ORDER BY s.base_offset) AS keys,
        string_agg(s.headers, '' ORDER BY s.base_offset) AS headers,
        array_agg(s.count ORDER BY s.base_offset) AS run_counts,
        array_agg(s.created_at ORDER BY s.base_offset) AS run_times,
        string_agg(e.ends, '' ORDER BY s.base_offset) AS ends,
        CASE WHEN bool_or(octet_length(s.ends) > 4 * s.count) THEN string_agg(
            coalesce(penstock.null_flags(s.count, s.ends), decode(repeat('00', s.count), 'hex')), ''
            ORDER BY s.base_offset
        ) ELSE '' END AS nulls,
        string_agg(e.key_ends, '' ORDER BY s.base_offset) AS key_ends,
        string_agg(e.header_ends, '' ORDER BY s.base_offset) AS header_ends
    INTO merged
    FROM (
        SELECT
            s.*, coalesce(s.body, s.body_compressed) AS value,
            sum(octet_length(coalesce(s.body, s.body_compressed))) OVER before AS value_shift,
            sum(octet_length(s.keys)) OVER before AS key_shift,
            sum(octet_length(s.headers)) OVER before AS header_shift
        FROM penstock.segments s
        WHERE s.partition_id = merge_segments.partition_id AND s.base_offset = ANY (run)
        WINDOW before AS (ORDER BY s.base_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ) s
    CROSS JOIN LATERAL (
        SELECT
            string_agg(penstock.int32_pack(
                (penstock.end_at(s.ends, i, octet_length(s.value)) + coalesce(s.value_shift, 0))::integer), ''
                ORDER BY i
            ) AS ends,
            string_agg(penstock.int32_pack(
                (coalesce(penstock.end_at(s.key_ends, i, octet_length(s.keys)), 0) + coalesce(s.key_shift, 0))::integer), ''
                ORDER BY i
            ) AS key_ends,
            string_agg(penstock.int32_pack(
                (coalesce(penstock.end_at(s.header_ends, i, octet_length(s.headers)), 0)
                    + coalesce(s.header_shift, 0))::integer), ''
                ORDER BY i
            ) AS header_ends
        FROM generate_series(0, s.count - 1) i
    ) e;

    DELETE FROM penstock.segments s
    WHERE s.partition_id = merge_segments.partition_id AND s.base_offset = ANY (run[2:]);
    UPDATE penstock.segments s
    SET count = merged.count,
        bytes = merged.bytes,
        created_at = merged.created_at,
        body = CASE WHEN NOT merged.compressed THEN merged.body END,
        body_compressed = CASE WHEN merged.compressed THEN merged.body END,
        ends = merged.ends || merged.nulls,
        keys = merged.keys,
        key_ends = CASE WHEN merged.keys IS NOT NULL THEN merged.key_ends END,
        headers = merged.headers,
        header_ends = CASE WHEN merged.headers IS NOT NULL THEN merged.header_ends END,
        run_counts = merged.run_counts,
        run_times = merged.run_times
    WHERE s.partition_id = merge_segments.partition_id AND s.base_offset = run[1];
    RETURN cardinality(run);
END
$$;
