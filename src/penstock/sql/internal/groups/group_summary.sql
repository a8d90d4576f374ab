-- penstock.group_summary(target_group)
--
-- Adds up what waits for a group and what is held of it, at a cost that is bounded however many partitions wait: up to
-- 10,000 of them are visited. Where there are more, the numbers are those of the last sample; if there is none, or it has less
-- than what was visited, they are what was visited, and so the least that there can be.
--
-- Parameters: target_group.
-- Returns: one row. newest - how many messages a group that conflates will be given; ready, claimed, waiting - of partitions and ranges;
-- sampled_at - when the numbers were sampled, null: just now; at_least - whether there may be more.
-- Calls: group_work. Tables: consumer_groups, ready, journal, claims, partitions, group_samples (read).
CREATE OR REPLACE FUNCTION penstock.group_summary(
    target_group integer,
    OUT lag bigint, OUT depth bigint, OUT newest bigint, OUT ready bigint, OUT claimed bigint, OUT waiting bigint,
    OUT oldest_since timestamptz, OUT sampled_at timestamptz, OUT at_least boolean
)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    most    CONSTANT integer := 10000;
    sampled penstock.group_samples;
BEGIN
    SELECT
        coalesce(sum(greatest(w.head_offset - w.committed, 0)), 0),
        coalesce(sum(greatest(w.head_offset - greatest(w.claimed_to, w.committed), 0)), 0),
        -- What is claimed, and of each partition one more where there is something newer.
        coalesce(sum(w.claimed_to - w.committed) FILTER (WHERE w.state = 'c'), 0) + count(DISTINCT w.partition_id) FILTER (
            WHERE w.head_offset > CASE w.state WHEN 'c' THEN w.claimed_to ELSE w.committed END
        ),
        count(*) FILTER (WHERE w.state = 'r'), count(*) FILTER (WHERE w.state = 'c'),
        count(*) FILTER (WHERE w.state = 't'), min(w.since) FILTER (WHERE w.head_offset > w.committed)
    INTO lag, depth, newest, ready, claimed, waiting, oldest_since
    FROM penstock.group_work(target_group, most) w;
    at_least := (
        SELECT count(*) = most FROM (SELECT 1 FROM penstock.ready y WHERE y.group_id = target_group LIMIT most) n
    ) OR (
        -- Of all groups: timers are in the order of their time.
        SELECT count(*) = most FROM (SELECT 1 FROM penstock.journal j WHERE j.due_at IS NOT NULL LIMIT most) n
    ) OR (
        SELECT count(*) = most FROM (SELECT 1 FROM penstock.claims c WHERE c.group_id = target_group LIMIT most) n
    ) OR (
        SELECT count(*) = most
        FROM (
            SELECT 1
            FROM penstock.consumer_groups g
            JOIN penstock.partitions p ON p.queue_id = g.queue_id AND p.partition_id > g.enrolled_to
            WHERE g.group_id = target_group
            LIMIT most
        ) n
    );
    IF at_least THEN
        SELECT s.* INTO sampled FROM penstock.group_samples s WHERE s.group_id = target_group;
        IF sampled.lag >= lag THEN
            lag := sampled.lag;
            depth := sampled.depth;
            ready := sampled.ready;
            claimed := sampled.claimed;
            waiting := sampled.waiting;
            -- Each of them has one that is newest.
            newest := least(lag, ready + claimed + waiting);
            oldest_since := sampled.oldest_at;
            sampled_at := sampled.sampled_at;
            at_least := false;
        END IF;
    END IF;
END
$$;
