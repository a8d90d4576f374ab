-- penstock.may_push()
--
-- Returns whether the session user may push: a member of penstock_producer or penstock_admin, or of the schema's owner. As in
-- is_admin the session user decides.
--
-- Parameters: none.
-- Returns: whether.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.may_push()
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    -- Most workers are the owner, or a superuser; a look at the roles costs more.
    SELECT pg_has_role(
        session_user, (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'penstock'), 'MEMBER'
    ) OR EXISTS (
        SELECT 1 FROM pg_roles r
        WHERE r.rolname IN ('penstock_producer', 'penstock_admin') AND pg_has_role(session_user, r.oid, 'MEMBER')
    )
$$;
