-- penstock.compresses(choice)
--
-- Returns whether a queue's values are stored in the compressed column. pglz halves the speed of writing, so `auto`
-- means lz4 or none.
--
-- Parameters: choice - the queue's setting `compression`.
-- Returns: true for the compressed column.
-- Calls: lz4_available. Tables: none.
CREATE OR REPLACE FUNCTION penstock.compresses(choice text)
RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT choice = 'on' OR choice = 'auto' AND penstock.lz4_available()
$$;
