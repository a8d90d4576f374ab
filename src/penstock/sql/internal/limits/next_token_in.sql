-- penstock.next_token_in(full_at, now_here, spacing, burst, taken)
--
-- Returns how long it takes until a rate allows a message more than it does after so many others (GCRA).
--
-- Parameters: those of tokens_left; taken - how many messages are about to be taken.
-- Returns: the time, a millisecond at least.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.next_token_in(
    full_at timestamptz, now_here timestamptz, spacing interval, burst integer, taken integer DEFAULT 0
)
RETURNS interval
LANGUAGE sql IMMUTABLE
AS $$
    SELECT greatest(
        greatest(least(coalesce(full_at, now_here), now_here + burst * spacing), now_here)
        + (taken + 1 - burst) * spacing - now_here,
        interval '1 millisecond'
    )
$$;
