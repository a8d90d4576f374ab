-- penstock.configure_database(create_on_first_use)
--
-- Changes settings of the whole database. With create_on_first_use off, a push, pop or configure of a queue that does
-- not exist fails, and so does a pop of a group that does not: a typing error then creates nothing. Partitions are
-- still created on first use.
--
-- Parameters: create_on_first_use - whether queues and groups are created when they are first used; null keeps it.
-- Returns: all settings of the database, after the change.
-- Calls: nothing. Tables: database_settings (insert, update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.configure_database(create_on_first_use boolean DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF configure_database.create_on_first_use IS NOT NULL THEN
        INSERT INTO penstock.database_settings AS d (create_on_first_use)
        VALUES (configure_database.create_on_first_use)
        ON CONFLICT (one) DO UPDATE SET create_on_first_use = excluded.create_on_first_use
        WHERE d.create_on_first_use <> excluded.create_on_first_use;
    END IF;
    RETURN jsonb_build_object(
        'create_on_first_use', coalesce((SELECT d.create_on_first_use FROM penstock.database_settings d), true)
    );
END
$$;
