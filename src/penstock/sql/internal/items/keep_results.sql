-- penstock.keep_results(group_ids, partition_ids, offsets, states, given, errors, keep_fors)
--
-- Keeps the results of items. One that is too large is kept as just that: the item is done, and must not fail for it.
--
-- Parameters: parallel arrays, an entry per item; given - the values; keep_fors - for how many seconds to keep each.
-- Returns: nothing.
-- Calls: nothing. Tables: item_results (insert, update).
CREATE OR REPLACE FUNCTION penstock.keep_results(
    group_ids integer[], partition_ids bigint[], offsets bigint[], states text[], given bytea[], errors text[],
    keep_fors float8[]
)
RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO penstock.item_results (partition_id, message_offset, group_id, state, value, error, expires_at)
    SELECT DISTINCT ON (u.partition_id, u.message_offset, u.group_id)
        u.partition_id, u.message_offset, u.group_id,
        CASE WHEN octet_length(u.value) > 1000000 THEN 'too large' ELSE u.state END,
        CASE WHEN octet_length(u.value) > 1000000 THEN NULL ELSE u.value END,
        left(u.error, 100000), clock_timestamp() + make_interval(secs => u.keep_for)
    FROM unnest(group_ids, partition_ids, offsets, states, given, errors, keep_fors)
        u (group_id, partition_id, message_offset, state, value, error, keep_for)
    ORDER BY u.partition_id, u.message_offset, u.group_id
    -- Handled once more, after a seek or a redrive of its own.
    ON CONFLICT ON CONSTRAINT item_results_pkey DO UPDATE
    SET state = excluded.state, value = excluded.value, error = excluded.error, kept_at = excluded.kept_at,
        expires_at = excluded.expires_at
$$;
