-- penstock.state_name(state)
--
-- Returns the name of a state of the journal.
--
-- Parameters: state - the letter as stored.
-- Returns: the name.
-- Calls: nothing. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.state_name(state "char")
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE state
        WHEN 'i' THEN 'idle' WHEN 'r' THEN 'ready' WHEN 'c' THEN 'claimed'
        WHEN 't' THEN 'timed' WHEN 'p' THEN 'parked' WHEN 'n' THEN 'enrolling'
    END
$$;
