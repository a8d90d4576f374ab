-- penstock.differences(max_age)
--
-- Returns what `verify` last found, and runs it again if that is older than so many seconds. Of several who ask at the
-- same time one runs it; the others get what is known. So each gateway may ask as often as it likes.
--
-- Parameters: max_age - in seconds; null: only return what is known.
-- Returns: a row per check: its name, the number of violations, and when it was run. No row before the first time.
-- Calls: verify, policy_clock. Tables: verifications (lock, read, insert, delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.differences(max_age float8 DEFAULT NULL)
RETURNS TABLE (check_name text, violations bigint, checked_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    now_at timestamptz := penstock.policy_clock();
BEGIN
    IF max_age < 0 THEN
        RAISE EXCEPTION 'max_age is % and must not be negative', max_age USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF max_age IS NOT NULL AND NOT EXISTS (
        -- One that was written after now was written before the clock went back.
        SELECT 1 FROM penstock.verifications v
        WHERE v.checked_at BETWEEN now_at - make_interval(secs => max_age) AND now_at
    ) THEN
        BEGIN
            LOCK TABLE penstock.verifications IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
            DELETE FROM penstock.verifications v;
            INSERT INTO penstock.verifications (check_name, violations, checked_at)
            SELECT v.check_name, v.violations, now_at FROM penstock.verify() v;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END IF;
    RETURN QUERY
    SELECT v.check_name, v.violations, v.checked_at FROM penstock.verifications v ORDER BY v.check_name;
END
$$;
