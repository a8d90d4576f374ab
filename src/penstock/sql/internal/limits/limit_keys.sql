-- penstock.limit_keys(target_group, target, start_offset, stop_offset, source)
--
-- Returns the keys that a limit goes by, for messages of a partition. Messages without one have the empty key in common. A
-- long key is replaced by its hash.
--
-- Parameters: the group; the partition and the range of offsets; source - the setting rate_by or concurrency_by.
-- Returns: a key per message.
-- Calls: segment_slices, unpack, payload_json. Tables: none.
CREATE OR REPLACE FUNCTION penstock.limit_keys(
    target_group integer, target bigint, start_offset bigint, stop_offset bigint, source text
)
RETURNS text[]
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    path text[] := CASE WHEN source LIKE 'field:%' THEN '{payload}' || string_to_array(substring(source FROM 7), '.') END;
BEGIN
    IF source = 'partition' THEN
        RETURN array_fill(target::text, ARRAY[(stop_offset - start_offset)::integer]);
    ELSIF source = 'group' THEN
        RETURN array_fill(''::text, ARRAY[(stop_offset - start_offset)::integer]);
    END IF;
    RETURN ARRAY(
        SELECT CASE WHEN octet_length(k.key) > 200 THEN md5(k.key) ELSE coalesce(k.key, '') END
        FROM generate_series(start_offset, stop_offset - 1) n (message_offset)
        LEFT JOIN (
            SELECT
                m.message_offset,
                CASE WHEN path IS NULL THEN m.message_key ELSE penstock.payload_json(m.payload) #>> path END AS key
            FROM penstock.segment_slices(target, start_offset, stop_offset) s
            CROSS JOIN LATERAL penstock.unpack(
                target, s.base_offset, s.count, s.created_at, s.run_skip, s.run_counts, s.run_times,
                s.body_start, s.body, s.ends, s.key_start, s.keys, s.key_ends, s.header_start, s.headers, s.header_ends
            ) m
        ) k ON k.message_offset = n.message_offset
        ORDER BY n.message_offset
    );
END
$$;
