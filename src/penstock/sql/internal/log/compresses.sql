-- penstock.compresses(choice)
--
-- Says whether a queue's values go to the compressed column. pglz halves the speed of writing, so `auto` means
-- lz4 or nothing.
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
