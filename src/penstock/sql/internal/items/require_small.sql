-- penstock.require_small(given, what)
--
-- Raises an error if something that is kept beside the log is too large to be kept there.
--
-- Parameters: given - what is to be kept; what - what it is.
-- Returns: nothing; raises program_limit_exceeded.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_small(given text, what text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF octet_length(given) > 1000000 THEN
        RAISE EXCEPTION '% of % bytes is over the limit, which is 1000000 bytes', what, octet_length(given)
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Store it elsewhere and keep its address.';
    END IF;
END
$$;
