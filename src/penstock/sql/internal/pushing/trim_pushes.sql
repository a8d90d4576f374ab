-- penstock.trim_pushes(max_rows)
--
-- Deletes what pushes left behind: dedupe ids that are older than their window, and answers to pushes that are not
-- repeated any more.
--
-- Parameters: max_rows - the largest number of rows of each.
-- Returns: the larger of the two numbers; call again while it is max_rows.
-- Calls: trim_dedupe_ids, trim_producers. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.trim_pushes(max_rows integer)
RETURNS integer
LANGUAGE sql
AS $$
    SELECT greatest(penstock.trim_dedupe_ids(max_rows), penstock.trim_producers(max_rows))
$$;
