-- penstock.texts_are_plain(keys, headers)
--
-- Looks at the keys and headers of a whole batch at once. Objects that follow one another become one array by the commas
-- between them; where the same two characters are part of a string, they become another valid string.
--
-- Parameters: keys, headers - packed columns, null where unused.
-- Returns: whether all of it is text, and JSON objects of strings. False is no verdict: spaces between two objects are
-- not seen through here, and require_texts looks at each message.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.texts_are_plain(keys bytea, headers bytea)
RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    objects jsonb;
BEGIN
    PERFORM convert_from(keys, 'UTF8');
    objects := ('[' || replace(convert_from(headers, 'UTF8'), '}{', '},{') || ']')::jsonb;
    RETURN NOT coalesce(jsonb_path_exists(
        objects, '$[*] ? (@.type() != "object" || exists(@.* ? (@.type() != "string")))'
    ), false);
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN false;
END
$$;
