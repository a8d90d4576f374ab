-- penstock.await_group(target_group, settings)
--
-- Takes note that consumers of a group wait for its limit: the sweep, or whoever frees a slot, tells them to look. Only the
-- first one to wait writes.
--
-- Parameters: target_group; settings - the group's.
-- Returns: nothing.
-- Calls: policy_clock, rate_of, next_token_in. Tables: limited_keys (update).
CREATE OR REPLACE FUNCTION penstock.await_group(target_group integer, settings jsonb)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE penstock.limited_keys k
    SET full_at = CASE k.kind WHEN 'r' THEN (
            SELECT least(k.full_at, penstock.policy_clock() + r.burst * r.spacing) FROM penstock.rate_of(settings) r
        ) END,
        looked_at = clock_timestamp(), look_at = clock_timestamp() + CASE k.kind
        WHEN 'r' THEN (
            SELECT penstock.next_token_in(k.full_at, penstock.policy_clock(), r.spacing, r.burst)
            FROM penstock.rate_of(settings) r
        )
        ELSE interval '50 milliseconds'
    END
    WHERE k.ctid = ANY (ARRAY(
        SELECT k.ctid FROM penstock.limited_keys k
        WHERE k.group_id = target_group AND k.key = '' AND k.look_at IS NULL AND k.kind IN ('r', 'c')
          AND settings ? CASE k.kind WHEN 'r' THEN 'rate_limit' ELSE 'concurrency_limit' END
        FOR NO KEY UPDATE SKIP LOCKED
    ))
$$;
