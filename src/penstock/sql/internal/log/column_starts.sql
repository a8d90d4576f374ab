-- penstock.column_starts(firsts, data, ends)
--
-- Returns where segments begin in a column that has all of them, one after the other.
--
-- Parameters: firsts - the index of the first message of each segment, and the number of messages; data - the values;
-- ends - where each value ends, counted from 0 in every segment.
-- Returns: where each segment begins in data, and where the last one ends; null for no column. Raises if the ends do
-- not fit the data.
-- Calls: int32_at. Tables: none.
CREATE OR REPLACE FUNCTION penstock.column_starts(firsts integer[], data bytea, ends bytea)
RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    -- Impossible ones: a size that cannot be leaves the last of them.
    starts integer[] := 0 || array_fill(-1, ARRAY[cardinality(firsts) - 1]);
    size   integer;
BEGIN
    IF data IS NULL THEN
        RETURN NULL;
    END IF;
    FOR nth IN 2..cardinality(firsts) LOOP
        size := penstock.int32_at(ends, firsts[nth] - 1);
        EXIT WHEN size < 0 OR size > octet_length(data) - starts[nth - 1];
        starts[nth] := starts[nth - 1] + size;
    END LOOP;
    IF starts[cardinality(starts)] <> octet_length(data) THEN
        RAISE EXCEPTION 'the last ends of all segments must add up to the length of the column'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN starts;
END
$$;
