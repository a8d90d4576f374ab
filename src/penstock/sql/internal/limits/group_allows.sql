-- penstock.group_allows(target_group, settings)
--
-- Says how much the limits of a whole group allow now. It locks and writes nothing.
--
-- Parameters: target_group; settings - the group's.
-- Returns: messages that its rate allows, and slots that are free; null where there is no such limit.
-- Calls: policy_clock, rate_of, tokens_left. Tables: limited_keys, slots (read).
CREATE OR REPLACE FUNCTION penstock.group_allows(
    target_group integer, settings jsonb, OUT tokens integer, OUT free integer
)
LANGUAGE sql
AS $$
    SELECT
        CASE WHEN settings @> '{"rate_by": "group"}' THEN (
            SELECT penstock.tokens_left((
                SELECT k.full_at FROM penstock.limited_keys k
                WHERE k.group_id = target_group AND k.kind = 'r' AND k.key = ''
            ), penstock.policy_clock(), r.spacing, r.burst)
            FROM penstock.rate_of(settings) r
        ) END,
        CASE WHEN settings @> '{"concurrency_by": "group"}' THEN (settings ->> 'concurrency_limit')::integer - (
            SELECT coalesce(sum(s.messages), 0) FROM penstock.slots s WHERE s.group_id = target_group AND s.key = ''
        )::integer END
$$;
