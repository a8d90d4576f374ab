-- penstock.trim_pushes(max_rows)
--
-- Deletes what pushes left behind and nobody needs any more: dedupe ids that have outlived their window.
--
-- Parameters: max_rows - how many rows at most.
-- Returns: how many; call again while it is so many.
-- Calls: trim_dedupe_ids. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.trim_pushes(max_rows integer)
RETURNS integer
LANGUAGE sql
AS $$
    SELECT penstock.trim_dedupe_ids(max_rows)
$$;
