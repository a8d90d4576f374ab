-- penstock.null_flags(count, ends)
--
-- Returns which messages of a segment have a null value. If some have, a byte per message follows the ends: 1 for
-- null, 0 for a value. Most segments have none, and their ends are four bytes per message.
--
-- Parameters: count, ends - those of a segment, or of a slice.
-- Returns: the bytes; null if no value is null.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.null_flags(count integer, ends bytea)
RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN octet_length(ends) > 4 * count THEN substring(ends FROM 4 * count + 1) END
$$;
