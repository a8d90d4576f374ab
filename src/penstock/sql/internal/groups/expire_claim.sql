-- penstock.expire_claim(before)
--
-- Ends a claim of an ordered group whose lease expired. The delivery counts as an attempt, because nobody knows whether one
-- of its messages brought the consumer down. One that was claimed ahead and not begun did not. Of a first delivery nobody
-- says whether it was begun: it counts, but never makes a dead letter.
--
-- Parameters: before - the claim, whose row the caller has locked and read again.
-- Returns: nothing.
-- Calls: append_state, fail_claim. Tables: none of its own.
CREATE OR REPLACE FUNCTION penstock.expire_claim(before penstock.journal)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF before.ahead AND before.attempt > 1 THEN
        PERFORM penstock.append_state(
            before, 'r', before.committed, (before.attempt - 1)::smallint, before.narrow_attempt, before.narrow_to,
            NULL, before.first_error, before.last_error
        );
    ELSE
        PERFORM penstock.fail_claim(before, NULL, 'the lease expired', 'lease expired', 0, begun => NOT before.ahead);
    END IF;
END
$$;
