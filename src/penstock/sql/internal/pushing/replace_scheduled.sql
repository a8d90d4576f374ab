-- penstock.replace_scheduled(ids, targets, dues, new_bodies, new_ends, new_keys, new_key_ends, new_headers,
--                            new_header_ends)
--
-- Puts other messages in the place of scheduled ones, which the caller has locked. They keep their ids.
--
-- Parameters: parallel arrays: the id of a scheduled message; the partition of the new one; when it is due, null: when
-- the old one was; and the new message, packed.
-- Returns: nothing.
-- Calls: packed_bytes. Tables: scheduled (update).
CREATE OR REPLACE FUNCTION penstock.replace_scheduled(
    ids bigint[], targets bigint[], dues timestamptz[], new_bodies bytea[], new_ends bytea[],
    new_keys bytea[], new_key_ends bytea[], new_headers bytea[], new_header_ends bytea[]
)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE penstock.scheduled s
    SET partition_id = n.target, due_at = coalesce(n.due_at, s.due_at),
        bytes = penstock.packed_bytes(n.body, n.keys, n.headers),
        body = n.body, ends = n.ends, keys = n.keys, key_ends = n.key_ends, headers = n.headers,
        header_ends = n.header_ends
    FROM unnest(ids, targets, dues, new_bodies, new_ends, new_keys, new_key_ends, new_headers, new_header_ends)
        n (scheduled_id, target, due_at, body, ends, keys, key_ends, headers, header_ends)
    WHERE s.scheduled_id = n.scheduled_id
$$;
