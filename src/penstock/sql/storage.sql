-- How the segments lie on disk: lz4 where this server has it, uncompressed where not. Applied by every migrate, so
-- a server that gained lz4 since is used to the full.

DO $$
DECLARE
    lz4 boolean := EXISTS (
        SELECT 1 FROM pg_catalog.pg_settings s
        WHERE s.name = 'default_toast_compression' AND 'lz4' = ANY (s.enumvals)
    );
BEGIN
    EXECUTE format(
        'CREATE OR REPLACE FUNCTION penstock.lz4_available() RETURNS boolean '
        'LANGUAGE sql IMMUTABLE PARALLEL SAFE AS %L',
        'SELECT ' || lz4
    );
    ALTER TABLE penstock.segments
        ALTER COLUMN body SET STORAGE EXTERNAL,
        ALTER COLUMN ends SET STORAGE EXTERNAL,
        ALTER COLUMN keys SET STORAGE EXTERNAL,
        ALTER COLUMN key_ends SET STORAGE EXTERNAL,
        ALTER COLUMN headers SET STORAGE EXTERNAL,
        ALTER COLUMN header_ends SET STORAGE EXTERNAL;
    ALTER TABLE penstock.scheduled ALTER COLUMN body SET STORAGE EXTERNAL;
    IF lz4 THEN
        ALTER TABLE penstock.scheduled
            ALTER COLUMN body SET STORAGE EXTENDED,
            ALTER COLUMN body SET COMPRESSION lz4;
        ALTER TABLE penstock.segments
            ALTER COLUMN body_compressed SET COMPRESSION lz4,
            ALTER COLUMN keys SET STORAGE EXTENDED,
            ALTER COLUMN keys SET COMPRESSION lz4,
            ALTER COLUMN headers SET STORAGE EXTENDED,
            ALTER COLUMN headers SET COMPRESSION lz4;
    END IF;
END
$$;
