-- How columns are compressed that gain by it: with lz4 where this server has it, not at all where it has only pglz,
-- which costs more than it gains. Applied by every migrate, so that a server that gained lz4 since is used to the
-- full.

DO $$
DECLARE
    lz4 boolean := EXISTS (
        SELECT 1 FROM pg_catalog.pg_settings s
        WHERE s.name = 'default_toast_compression' AND 'lz4' = ANY (s.enumvals)
    );
    wanted record;
BEGIN
    EXECUTE format(
        'CREATE OR REPLACE FUNCTION penstock.lz4_available() RETURNS boolean '
        'LANGUAGE sql IMMUTABLE PARALLEL SAFE AS %L',
        'SELECT ' || lz4
    );
    -- Only what is not so yet: to alter a table waits for all who use it, and makes all others wait behind.
    FOR wanted IN
        SELECT w.*
        FROM (VALUES
            ('segments', 'keys', lz4), ('segments', 'headers', lz4), ('segments', 'body_compressed', true),
            ('scheduled', 'body', lz4)
        ) w (relation, column_name, compressed)
        JOIN pg_catalog.pg_attribute a
            ON a.attrelid = format('penstock.%I', w.relation)::regclass AND a.attname = w.column_name
        WHERE a.attstorage <> CASE WHEN w.compressed THEN 'x' ELSE 'e' END::"char"
           OR w.compressed AND lz4 AND a.attcompression <> 'l'
    LOOP
        EXECUTE format(
            'ALTER TABLE penstock.%I ALTER COLUMN %I SET STORAGE %s',
            wanted.relation, wanted.column_name, CASE WHEN wanted.compressed THEN 'EXTENDED' ELSE 'EXTERNAL' END
        );
        IF wanted.compressed AND lz4 THEN
            EXECUTE format(
                'ALTER TABLE penstock.%I ALTER COLUMN %I SET COMPRESSION lz4', wanted.relation, wanted.column_name
            );
        END IF;
    END LOOP;
END
$$;
