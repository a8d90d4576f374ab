-- penstock.pass_limits(target_group, target, start_offset, stop_offset, settings, shared, lease)
--
-- Says which messages of a range may be delivered as far as limits by key go, and takes what they need: of an ordered group
-- the first ones, up to one that must wait; of a shared group all that may. A claim of an ordered group is worked on message
-- by message, so it takes one slot of each key that it has; one of a shared group takes a slot for each message.
--
-- It waits for nobody: messages whose key somebody else is just popping are busy, and tried again in a moment.
--
-- Parameters: the group, the partition and the range; settings - the group's; shared - the group's mode; lease - of the
-- claim that is about to be made, null for one that is done at once, which takes no slots.
-- Returns: ranges in order, which are all of the range in a shared group, and the first one in an ordered group; `blocked`:
-- null where it may be delivered, else what it waits for: 'r' and 'c' for the limits of `key`, 'b' for a moment.
-- Calls: policy_clock, rate_of, tokens_left, next_token_in, limit_keys, lock_limited_keys. Tables: limited_keys (update), slots (read,
-- insert).
CREATE OR REPLACE FUNCTION penstock.pass_limits(
    target_group integer, target bigint, start_offset bigint, stop_offset bigint, settings jsonb, shared boolean, lease uuid
)
RETURNS TABLE (lo bigint, hi bigint, blocked "char", key text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    now_here    timestamptz := penstock.policy_clock();
    spacing     interval;
    burst       integer;
    rate_by     text := coalesce(settings ->> 'rate_by', 'partition');
    count_by    text := coalesce(settings ->> 'concurrency_by', 'partition');
    most        integer := (settings ->> 'concurrency_limit')::integer;
    rated       boolean := settings ->> 'rate_limit' IS NOT NULL;
    -- A partition of an ordered group is never claimed twice.
    counted     boolean := most IS NOT NULL AND lease IS NOT NULL AND (shared OR count_by <> 'partition');
    rate_keys   text[];
    count_keys  text[];
    -- Of the keys that are locked: what is left of them.
    rate_names  text[];
    rate_left   integer[];
    count_names text[];
    count_left  bigint[];
    verdicts    text[];
    taken       integer;
BEGIN
    IF rated THEN
        SELECT r.spacing, r.burst INTO spacing, burst FROM penstock.rate_of(settings) r;
        rate_keys := penstock.limit_keys(target_group, target, start_offset, stop_offset, rate_by);
        SELECT array_agg(l.key), array_agg(penstock.tokens_left(l.full_at, now_here, spacing, burst))
        INTO rate_names, rate_left
        FROM penstock.lock_limited_keys(target_group, 'r', rate_keys) l;
    END IF;
    IF counted THEN
        count_keys := CASE
            WHEN rated AND count_by = rate_by THEN rate_keys
            ELSE penstock.limit_keys(target_group, target, start_offset, stop_offset, count_by)
        END;
        SELECT array_agg(l.key) INTO count_names FROM penstock.lock_limited_keys(target_group, 'c', count_keys) l;
        -- A new statement, hence a new snapshot: under the locks it sees all that others have taken.
        SELECT array_agg(n.key ORDER BY n.nth), array_agg(most - coalesce(s.messages, 0) ORDER BY n.nth)
        INTO count_names, count_left
        FROM unnest(count_names) WITH ORDINALITY n (key, nth)
        LEFT JOIN LATERAL (
            SELECT sum(s.messages) AS messages FROM penstock.slots s WHERE s.group_id = target_group AND s.key = n.key
        ) s ON true;
    END IF;
    verdicts := ARRAY(
        SELECT CASE
            WHEN rated AND r.key IS NULL OR counted AND c.key IS NULL THEN 'b'
            WHEN m.rate_nth > r.tokens THEN 'r'
            WHEN CASE WHEN shared THEN m.count_nth ELSE 1 END > c.slots THEN 'c'
        END
        FROM (
            SELECT
                n, rate_keys[n] AS rate_key, count_keys[n] AS count_key,
                row_number() OVER (PARTITION BY rate_keys[n] ORDER BY n) AS rate_nth,
                row_number() OVER (PARTITION BY count_keys[n] ORDER BY n) AS count_nth
            FROM generate_series(1, (stop_offset - start_offset)::integer) n
        ) m
        LEFT JOIN unnest(rate_names, rate_left) r (key, tokens) ON r.key = m.rate_key
        LEFT JOIN unnest(count_names, count_left) c (key, slots) ON c.key = m.count_key
        ORDER BY m.n
    );
    -- In order, what comes after one that waits waits too, and is not looked at.
    taken := CASE WHEN shared THEN cardinality(verdicts) ELSE coalesce((
        SELECT min(n) - 1 FROM generate_subscripts(verdicts, 1) n WHERE verdicts[n] IS NOT NULL
    ), cardinality(verdicts)) END;
    IF rated THEN
        UPDATE penstock.limited_keys k
        SET full_at = greatest(least(coalesce(k.full_at, now_here), now_here + burst * spacing), now_here) + t.messages * spacing
        FROM (
            SELECT rate_keys[n] AS key, count(*) AS messages FROM generate_series(1, taken) n
            WHERE verdicts[n] IS NULL
            GROUP BY 1
        ) t
        WHERE k.group_id = target_group AND k.kind = 'r' AND k.key = t.key;
    END IF;
    IF counted THEN
        INSERT INTO penstock.slots (group_id, key, lease_id, partition_id, messages, offsets)
        SELECT
            target_group, count_keys[n], lease, target, CASE WHEN shared THEN count(*) ELSE 1 END,
            range_agg(int8range(start_offset + n - 1, start_offset + n))
        FROM generate_series(1, taken) n
        WHERE verdicts[n] IS NULL
        GROUP BY count_keys[n];
    END IF;
    IF taken = 0 OR shared THEN
        -- The sweep wakes those who wait, when the next message is allowed. A slot wakes them when it is freed; but one that
        -- is being freed just now does not know of them, so the sweep looks soon, and then less and less often.
        UPDATE penstock.limited_keys k
        SET look_at = w.look_at, looked_at = clock_timestamp(), full_at = w.full_at
        FROM (
            SELECT k.kind, k.key, least(k.full_at, now_here + burst * spacing) AS full_at, clock_timestamp() + CASE k.kind
                WHEN 'r' THEN penstock.next_token_in(k.full_at, now_here, spacing, burst)
                ELSE interval '50 milliseconds'
            END AS look_at
            FROM (
                SELECT DISTINCT verdicts[n]::"char" AS kind, CASE verdicts[n] WHEN 'r' THEN rate_keys[n] ELSE count_keys[n] END AS key
                FROM generate_series(1, greatest(taken, 1)) n
                WHERE verdicts[n] IN ('r', 'c')
            ) b
            JOIN penstock.limited_keys k ON k.group_id = target_group AND k.kind = b.kind AND k.key = b.key
        ) w
        WHERE k.group_id = target_group AND k.kind = w.kind AND k.key = w.key
          AND (k.look_at IS NULL OR k.look_at > w.look_at OR k.full_at > w.full_at);
    END IF;
    IF NOT shared THEN
        lo := start_offset;
        hi := start_offset + greatest(taken, 1);
        blocked := CASE WHEN taken = 0 THEN verdicts[1] END;
        key := CASE blocked WHEN 'r' THEN rate_keys[1] WHEN 'c' THEN count_keys[1] END;
        RETURN NEXT;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT start_offset + min(r.n) - 1, start_offset + max(r.n), r.verdict::"char", r.key
    FROM (
        SELECT m.n, m.verdict, m.key, m.n - row_number() OVER (PARTITION BY m.verdict, m.key ORDER BY m.n) AS run
        FROM (
            SELECT
                n, verdicts[n] AS verdict, CASE verdicts[n] WHEN 'r' THEN rate_keys[n] WHEN 'c' THEN count_keys[n] END AS key
            FROM generate_subscripts(verdicts, 1) n
        ) m
    ) r
    GROUP BY r.verdict, r.key, r.run
    ORDER BY 1;
END
$$;
