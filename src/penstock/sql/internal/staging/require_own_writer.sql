-- penstock.require_own_writer(writer)
--
-- Raises an error if a writer belongs to another user: a newer run replaces the older ones, so others may not begin,
-- publish or abort for it. A member of the other user's role may, and so may an admin.
--
-- Parameters: writer - the query's id.
-- Returns: nothing; raises insufficient_privilege.
-- Calls: is_admin. Tables: sink_runs (read).
CREATE OR REPLACE FUNCTION penstock.require_own_writer(writer text)
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    other name := (
        SELECT r.owner FROM penstock.sink_runs r
        WHERE r.writer = require_own_writer.writer AND r.owner <> session_user
        ORDER BY r.run_number DESC
        LIMIT 1
    );
BEGIN
    -- A user who was dropped since has no say.
    IF other IS NOT NULL AND EXISTS (
        SELECT 1 FROM pg_roles p WHERE p.rolname = other AND NOT pg_has_role(session_user, p.oid, 'MEMBER')
    ) AND NOT penstock.is_admin() THEN
        RAISE EXCEPTION 'permission denied: query % is written by user "%"', writer, other
            USING ERRCODE = 'insufficient_privilege', HINT = 'Run it as that user, or once as an admin.';
    END IF;
END
$$;
