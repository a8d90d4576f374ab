-- penstock.require_packed(queue_name, allowed, count, body, ends, keys, key_ends, headers, header_ends)
--
-- Raises an error if the packing of a segment is broken or if a message is over the queue's limit. The cost is per
-- segment: only a segment that is over the limit as a whole can have a message that is, and only such a segment is
-- checked message by message. A segment of several messages has 64 MiB at most, and keys and headers never more:
-- whoever publishes or reads a segment holds it in memory.
--
-- Parameters: the queue and its max_message_bytes, then the packed columns.
-- Returns: nothing; raises invalid_parameter_value or program_limit_exceeded.
-- Calls: int32_at, null_flags, texts_are_plain, require_texts. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_packed(
    queue_name  text,
    allowed     integer,
    count       integer,
    body        bytea,
    ends        bytea,
    keys        bytea,
    key_ends    bytea,
    headers     bytea,
    header_ends bytea
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    most_bytes constant bigint := 67108864;
    bytes      bigint;
    longest    bigint;
BEGIN
    IF count IS NULL OR count < 1 OR count > 1000000 THEN
        RAISE EXCEPTION 'a segment must have 1 to 1000000 messages and this one has %', coalesce(count, 0)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF body IS NULL OR ends IS NULL
       OR octet_length(ends) NOT IN (4 * count, 5 * count) OR penstock.int32_at(ends, count - 1) <> octet_length(body)
       OR (keys IS NULL) <> (key_ends IS NULL)
       OR octet_length(key_ends) <> 4 * count OR penstock.int32_at(key_ends, count - 1) <> octet_length(keys)
       OR (headers IS NULL) <> (header_ends IS NULL)
       OR octet_length(header_ends) <> 4 * count
       OR penstock.int32_at(header_ends, count - 1) <> octet_length(headers)
    THEN
        RAISE EXCEPTION 'a packed column of % messages needs % bytes of ends, the last of them the column''s length',
            count, 4 * count
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF btrim(penstock.null_flags(count, ends), decode('0001', 'hex')) <> '' THEN
        RAISE EXCEPTION 'the bytes after the ends say which values are null, and must be 0 or 1'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(body) > allowed THEN
        SELECT max(penstock.int32_at(ends, i)::bigint - penstock.int32_at(ends, i - 1)) INTO longest
        FROM generate_series(0, count - 1) i;
        IF longest > allowed THEN
            RAISE EXCEPTION 'a message of % bytes is over the limit of queue "%", which is % bytes',
                longest, queue_name, allowed
                USING ERRCODE = 'program_limit_exceeded',
                      HINT = 'Raise the queue''s max_message_bytes, or push a reference to the data.';
        END IF;
    END IF;
    bytes := CASE WHEN count > 1 THEN octet_length(body) ELSE 0 END
        + coalesce(octet_length(keys), 0)::bigint + coalesce(octet_length(headers), 0);
    IF bytes > most_bytes THEN
        RAISE EXCEPTION 'a segment of % bytes is too large: one of several messages, or the keys and headers of one, may have %',
            bytes, most_bytes
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Push fewer messages in one segment.';
    END IF;
    IF (keys IS NOT NULL OR headers IS NOT NULL) AND NOT penstock.texts_are_plain(keys, headers) THEN
        PERFORM penstock.require_texts(count, keys, key_ends, headers, header_ends);
    END IF;
END
$$;
