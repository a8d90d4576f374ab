-- penstock.use_lock_timeout()
--
-- Applies the caller's lock timeout: SET penstock.lock_timeout = '2s'. The calling function declares SET lock_timeout
-- itself, so the caller's own value is restored when it returns.
--
-- Returns: nothing.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.use_lock_timeout()
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF current_setting('penstock.lock_timeout', true) <> '' THEN
        PERFORM set_config('lock_timeout', current_setting('penstock.lock_timeout'), true);
    END IF;
END
$$;
