-- penstock.refuse_full(partition_name)
--
-- Raises the error that a partition has reached offset_limit.
--
-- Parameters: partition_name.
-- Returns: never; raises program_limit_exceeded.
-- Calls: offset_limit. Tables: none.
CREATE OR REPLACE FUNCTION penstock.refuse_full(partition_name text)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'partition "%" is full: it has had % messages', partition_name, penstock.offset_limit()
        USING ERRCODE = 'program_limit_exceeded', HINT = 'Push to another partition.';
END
$$;
