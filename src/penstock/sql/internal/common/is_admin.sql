-- penstock.is_admin()
--
-- Returns whether the session user may do what admins may: a member of penstock_admin, or of the schema's owner. The
-- session user decides, because a SECURITY DEFINER function runs as its owner and cannot see its caller.
--
-- Parameters: none.
-- Returns: whether.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.is_admin()
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT 1 FROM pg_roles r
        WHERE (r.rolname = 'penstock_admin' OR r.oid = (
            SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'penstock'
        )) AND pg_has_role(session_user, r.oid, 'MEMBER')
    )
$$;
