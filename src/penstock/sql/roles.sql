-- The roles of least privilege. Producers push, consumers read and consume, gateways look up who calls them, admins do
-- all of that, and change and delete. Privileges on tables are never granted: the functions check what they are given.
-- The grants that follow are made from the lines "Granted to" in the headers of functions and views.
DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY[
        'penstock_producer', 'penstock_consumer', 'penstock_gateway', 'penstock_admin'
    ] LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles r WHERE r.rolname = role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA penstock TO %I', role);
        EXECUTE format('GRANT SELECT ON penstock.migrations TO %I', role);
    END LOOP;
END
$$;

DO $$
BEGIN
    -- Only the owner of the roles may grant them, and once is enough.
    IF NOT pg_has_role('penstock_admin', 'penstock_producer', 'member')
       OR NOT pg_has_role('penstock_admin', 'penstock_consumer', 'member')
       OR NOT pg_has_role('penstock_admin', 'penstock_gateway', 'member')
    THEN
        GRANT penstock_producer, penstock_consumer, penstock_gateway TO penstock_admin;
    END IF;
END
$$;
