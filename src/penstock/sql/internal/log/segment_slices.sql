-- penstock.segment_slices(partition_id, start_offset, stop_offset)
--
-- Reads a range of offsets as slices of the stored segments, still packed. Whole segments pass through untouched;
-- the first and the last are cut to the range. Dropped messages are simply not there.
--
-- Parameters: the range, from start_offset up to and without stop_offset.
-- Returns: one row per slice. Ends are those of the stored segment: the value of the slice's first message begins
-- at body_start, and body begins there too (likewise for keys and headers). run_skip messages of the runs lie
-- before the slice, and some may lie behind it.
-- Calls: end_at, run_of. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.segment_slices(partition_id bigint, start_offset bigint, stop_offset bigint)
RETURNS TABLE (
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT
        s.base_offset + cut.lo, cut.hi - cut.lo, s.created_at,
        CASE WHEN run.is_cut THEN cut.lo - run.before ELSE cut.lo END,
        CASE WHEN run.is_cut THEN s.run_counts[run.first : run.first + cut.hi - cut.lo - 1] ELSE s.run_counts END,
        CASE WHEN run.is_cut THEN s.run_times[run.first : run.first + cut.hi - cut.lo - 1] ELSE s.run_times END,
        at.body_lo,
        CASE WHEN cut.whole THEN coalesce(s.body, s.body_compressed)
             ELSE substring(coalesce(s.body, s.body_compressed) FROM at.body_lo + 1 FOR greatest(at.body_hi - at.body_lo, 0)) END,
        CASE WHEN cut.whole THEN s.ends
             ELSE substring(s.ends FROM 4 * cut.lo + 1 FOR 4 * (cut.hi - cut.lo))
             -- Nothing, unless some values are null: see null_flags.
             || substring(s.ends FROM 4 * s.count + cut.lo + 1 FOR cut.hi - cut.lo) END,
        at.key_lo,
        CASE WHEN cut.whole THEN s.keys
             ELSE substring(s.keys FROM at.key_lo + 1 FOR greatest(at.key_hi - at.key_lo, 0)) END,
        CASE WHEN cut.whole THEN s.key_ends
             ELSE substring(s.key_ends FROM 4 * cut.lo + 1 FOR 4 * (cut.hi - cut.lo)) END,
        at.header_lo,
        CASE WHEN cut.whole THEN s.headers
             ELSE substring(s.headers FROM at.header_lo + 1 FOR greatest(at.header_hi - at.header_lo, 0)) END,
        CASE WHEN cut.whole THEN s.header_ends
             ELSE substring(s.header_ends FROM 4 * cut.lo + 1 FOR 4 * (cut.hi - cut.lo)) END
    FROM penstock.segments s
    CROSS JOIN LATERAL (
        SELECT
            greatest(segment_slices.start_offset - s.base_offset, 0)::integer AS lo,
            least(segment_slices.stop_offset - s.base_offset, s.count)::integer AS hi,
            segment_slices.start_offset <= s.base_offset
            AND segment_slices.stop_offset >= s.base_offset + s.count AS whole,
            octet_length(coalesce(s.body, s.body_compressed)) AS body_bytes
    ) cut
    CROSS JOIN LATERAL (
        SELECT
            CASE WHEN cut.whole THEN 0 ELSE penstock.end_at(s.ends, cut.lo - 1, cut.body_bytes) END AS body_lo,
            CASE WHEN NOT cut.whole THEN penstock.end_at(s.ends, cut.hi - 1, cut.body_bytes) END AS body_hi,
            CASE WHEN cut.whole THEN 0 ELSE penstock.end_at(s.key_ends, cut.lo - 1, octet_length(s.keys)) END AS key_lo,
            CASE WHEN NOT cut.whole THEN penstock.end_at(s.key_ends, cut.hi - 1, octet_length(s.keys)) END AS key_hi,
            CASE WHEN cut.whole THEN 0 ELSE penstock.end_at(s.header_ends, cut.lo - 1, octet_length(s.headers)) END AS header_lo,
            CASE WHEN NOT cut.whole THEN penstock.end_at(s.header_ends, cut.hi - 1, octet_length(s.headers)) END AS header_hi
    ) at
    -- Runs are cut, too, since there may be thousands: whoever takes one message gets one time. A run holds a message or
    -- more, so as many runs as messages are enough.
    CROSS JOIN LATERAL (
        SELECT
            s.run_counts IS NOT NULL AND NOT cut.whole AS is_cut,
            (penstock.run_of(s.run_counts, cut.lo, s.count))[1] AS first,
            (penstock.run_of(s.run_counts, cut.lo, s.count))[2] AS before
    ) run
    WHERE s.partition_id = segment_slices.partition_id
      AND s.base_offset >= coalesce((
          SELECT f.base_offset FROM penstock.segments f
          WHERE f.partition_id = segment_slices.partition_id AND f.base_offset <= segment_slices.start_offset
          ORDER BY f.base_offset DESC
          LIMIT 1
      ), 0)
      AND s.base_offset < segment_slices.stop_offset
      AND s.base_offset + s.count > segment_slices.start_offset
      AND s.ends IS NOT NULL
    ORDER BY s.base_offset
$$;
