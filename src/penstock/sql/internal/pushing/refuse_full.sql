-- penstock.refuse_full(partition_name)
--
-- Refuses a push to a partition that has had as many messages as ids can tell apart.
--
-- Parameters: partition_name.
-- Returns: never; raises program_limit_exceeded.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.refuse_full(partition_name text)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'partition "%" has had as many messages as a partition can have', partition_name
        USING ERRCODE = 'program_limit_exceeded', HINT = 'Go on in another partition.';
END
$$;
