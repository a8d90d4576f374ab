-- penstock.require_grants(grants)
--
-- Raises an error if something is not a grant of an API key.
--
-- Parameters: grants - texts of the form scope:pattern.
-- Returns: nothing; raises invalid_parameter_value.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_grants(grants text[])
RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    wrong text;
BEGIN
    IF (cardinality(grants) BETWEEN 1 AND 100) IS NOT TRUE THEN
        RAISE EXCEPTION 'a key needs 1 to 100 grants such as push:orders-*' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT coalesce(g, 'null') INTO wrong
    FROM unnest(grants) g
    WHERE (g ~ '^(push|pop|read|admin):.' AND octet_length(g) <= 300 AND g !~ '[\u0001-\u001f\u007f-\u009f]') IS NOT TRUE
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '"%" is not a grant: it is push, pop, read or admin, a colon, and a pattern of queue names such as orders-*',
            left(wrong, 100)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;
