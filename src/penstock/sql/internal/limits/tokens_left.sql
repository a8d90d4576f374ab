-- penstock.tokens_left(full_at, now_here, spacing, burst)
--
-- Returns how many messages a rate allows now (GCRA). After the clock has gone back, or the rate has changed, `full_at` may
-- be later than any number of messages can have made it: then none is left, and the next one comes after one spacing.
--
-- Parameters: full_at - when a whole burst is allowed again, null for now; now_here; spacing and burst - of rate_of.
-- Returns: the number, 0 to burst.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.tokens_left(
    full_at timestamptz, now_here timestamptz, spacing interval, burst integer
)
RETURNS integer
LANGUAGE sql IMMUTABLE
AS $$
    -- By microseconds, as whole numbers: nothing is rounded.
    SELECT burst - ceil(
        extract(epoch FROM greatest(least(coalesce(full_at, now_here), now_here + burst * spacing), now_here) - now_here)
        / extract(epoch FROM spacing)
    )::integer
$$;
