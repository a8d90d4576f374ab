-- Drops functions that this version does not have. A function whose parameters changed is a new function beside the
-- old one, and calls with defaults would match both. The functions that the current migrate has just written have its
-- own transaction id, or a later one where psql sets savepoints (ON_ERROR_ROLLBACK). The schema belongs to penstock
-- alone, so all others are old ones.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN
        SELECT p.oid::regprocedure AS signature
        FROM pg_proc p
        WHERE p.pronamespace = 'penstock'::regnamespace AND age(p.xmin) > age(pg_current_xact_id()::xid)
    LOOP
        EXECUTE format('DROP FUNCTION %s', old.signature);
    END LOOP;
END
$$;
