-- penstock.is_admin()
--
-- Says whether whoever is logged in may do what admins do: a member of penstock_admin, or of the schema's owner. It is
-- the login that counts: a function that runs as its owner has no other word of its caller.
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
