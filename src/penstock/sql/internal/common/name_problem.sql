-- penstock.name_problem(name)
--
-- Checks the name of a queue or a partition.
--
-- Parameters: name - 1 to 255 bytes without control characters (U+0000 to U+001F and U+007F to U+009F, in every
-- locale); '*' means any partition and is no name, and a leading '~' is reserved for private lanes.
-- Returns: the problem, as an error text, or null.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.name_problem(name text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN name IS NULL THEN 'a name is missing'
        WHEN octet_length(name) NOT BETWEEN 1 AND 255 THEN
            format('a name must have 1 to 255 bytes and this one has %s', octet_length(name))
        WHEN name ~ '[\u0001-\u001f\u007f-\u009f]' THEN
            format('a name must have no control characters and %s has some', to_json(name))
        WHEN name LIKE '~%' THEN 'names that begin with "~" are kept for private lanes'
        WHEN name = '*' THEN 'the name "*" means any partition and cannot be given to one'
    END
$$;
