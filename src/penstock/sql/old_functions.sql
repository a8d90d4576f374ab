-- Drops functions that this version no longer has, whichever version wrote them. One whose parameters changed is a new function beside the old one,
-- and calls with defaults would fit both. What the migrate that is under way has just written bears its own
-- transaction's number, or a later one where psql sets savepoints (ON_ERROR_ROLLBACK); the schema is penstock's alone, so
-- all others are its own old ones.
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
