-- penstock.require_lease(live)
--
-- Raises an error unless a lease was live.
--
-- Parameters: live - whether it was.
-- Returns: nothing; raises object_not_in_prerequisite_state.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_lease(live boolean)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF live IS NOT TRUE THEN
        RAISE EXCEPTION 'the lease has expired or is another consumer''s; nothing was changed'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'The messages are delivered again. Renew in time, or give the group a longer lease_time.';
    END IF;
END
$$;
