-- penstock.expire_range(held)
--
-- Ends a range of a shared group whose lease expired, as expire_claim does it.
--
-- Parameters: held - the range, whose row the caller has deleted.
-- Returns: nothing.
-- Calls: offer_range, fail_range. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.expire_range(held penstock.claims)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF held.ahead AND held.attempt > 1 THEN
        PERFORM penstock.offer_range(
            held, held.lo, held.hi, (held.attempt - 1)::smallint, held.first_error, held.last_error
        );
    ELSE
        PERFORM penstock.fail_range(held, NULL, 'the lease expired', 'lease expired', 0, begun => NOT held.ahead);
    END IF;
END
$$;
