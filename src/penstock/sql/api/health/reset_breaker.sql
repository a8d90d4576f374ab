-- penstock.reset_breaker(queue_name, group_name)
--
-- Closes the circuit breaker of a group, whatever failed, and lets the group go on at once.
--
-- Parameters: the names.
-- Returns: whether it was open; raises undefined_object if there is no such group.
-- Calls: find_group, unhold_group. Tables: breakers (delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.reset_breaker(queue_name text, group_name text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target   integer := penstock.find_group(queue_name, group_name);
    was_open boolean;
BEGIN
    DELETE FROM penstock.breakers b WHERE b.group_id = target RETURNING b.state = 'open' INTO was_open;
    IF was_open THEN
        PERFORM penstock.unhold_group(target);
    END IF;
    RETURN coalesce(was_open, false);
END
$$;
