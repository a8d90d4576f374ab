-- penstock.rate_of(settings, prefix)
--
-- Returns the rate that settings allow, as GCRA has it: a message every `spacing`, and up to `burst` of them at once.
-- Spacing is rounded up to a microsecond, so that a rate is never exceeded.
--
-- Parameters: settings - of a group, or with the prefix 'push_' of a queue.
-- Returns: spacing and burst; nulls where there is no limit.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.rate_of(
    settings jsonb, prefix text DEFAULT '', OUT spacing interval, OUT burst integer
)
LANGUAGE sql IMMUTABLE
AS $$
    SELECT
        ceil(
            coalesce((settings ->> (prefix || 'rate_period'))::numeric, 1) * 1000000
            / (settings ->> (prefix || 'rate_limit'))::numeric
        )::float8 * interval '1 microsecond',
        coalesce(
            (settings ->> (prefix || 'rate_burst'))::integer, (settings ->> (prefix || 'rate_limit'))::integer
        )
$$;
