-- penstock.database_identity()
--
-- Returns a text that tells this database from others, for the names of keys in a Valkey that several of them share.
--
-- Returns: hexadecimal digits.
-- Calls: nothing. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.database_identity()
RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT left(md5(format('%s %s', c.system_identifier, d.oid)), 12)
    FROM pg_control_system() c, pg_database d
    WHERE d.datname = current_database()
$$;
