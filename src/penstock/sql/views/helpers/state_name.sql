-- penstock.state_name(state)
--
-- The word for a state of the journal.
--
-- Parameters: state - as stored.
-- Returns: the word people read.
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
