-- penstock.require_messages(messages, keys, headers, dedupe_ids)
--
-- Raises an error if push cannot take the messages, before anything is written.
--
-- Parameters: as in push.
-- Returns: nothing; raises invalid_parameter_value.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_messages(
    messages bytea[], keys text[], headers jsonb[], dedupe_ids text[]
)
RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    problem text := CASE
        WHEN coalesce(cardinality(messages), 0) = 0 THEN 'an empty push: give at least one message'
        WHEN cardinality(keys) <> cardinality(messages) OR cardinality(headers) <> cardinality(messages)
             OR cardinality(dedupe_ids) <> cardinality(messages) THEN
            format('%s messages need as many keys, headers and dedupe ids, or none', cardinality(messages))
        WHEN array_position(keys, '') IS NOT NULL THEN
            format('the key of message %s is empty: give it a character or leave it out', array_position(keys, ''))
        WHEN EXISTS (
            SELECT 1 FROM unnest(headers) h
            WHERE jsonb_typeof(h) <> 'object'
               OR EXISTS (SELECT 1 FROM jsonb_each(h) e WHERE jsonb_typeof(e.value) <> 'string')
        ) THEN 'headers must be JSON objects whose values are strings'
    END;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;
