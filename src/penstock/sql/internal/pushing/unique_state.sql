-- penstock.unique_state(of_partition, of_offset)
--
-- Tells what became of a message, from positions: whether anybody has taken it, and whether all groups are done with it.
--
-- Parameters: the partition and the offset of a message that is or was there.
-- Returns: state: 'waiting' - nobody holds it and no group is done with it, also if it waits for a retry or there is no
-- group; 'windowed' - it lies in a window in Valkey, and a worker may have taken it from there; 'taken' - somebody holds
-- it, or some groups are done with it; 'done' - all are, or it was cancelled for them; 'gone' - it was dropped, or its
-- partition deleted. can_cancel - whether it waits or is windowed, and can be cancelled for all who would take it: not for
-- a reader that keeps positions of its own, nor where there is no group yet.
-- Calls: partition_span, item_state. Tables: partitions, consumer_groups, cancellations (read).
CREATE OR REPLACE FUNCTION penstock.unique_state(
    of_partition bigint, of_offset bigint, OUT state text, OUT can_cancel boolean
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    states text[];
    kinds  text[];
BEGIN
    can_cancel := false;
    PERFORM 1 FROM penstock.partition_span(of_partition) s
    WHERE of_offset >= s.floor_offset AND of_offset < s.head_offset;
    IF NOT FOUND THEN
        state := 'gone';
        RETURN;
    END IF;
    SELECT array_agg(g.mode), array_agg(CASE
        -- It began after this message, or is not to have it: for this group there is nothing to do.
        WHEN i.state IS NULL OR i.state NOT IN ('done', 'taken') AND EXISTS (
            SELECT 1 FROM penstock.cancellations c
            WHERE c.group_id = g.group_id AND c.partition_id = of_partition AND c.message_offset = of_offset
        ) THEN 'nothing'
        WHEN i.state IN ('done', 'taken', 'windowed') THEN i.state
        ELSE 'waiting'
    END)
    INTO kinds, states
    FROM (
        SELECT p.queue_id, p.lane_of FROM penstock.partitions p WHERE p.partition_id = of_partition LIMIT 1
    ) p
    JOIN penstock.consumer_groups g ON g.queue_id = p.queue_id AND (p.lane_of IS NULL OR p.lane_of = g.group_id)
    CROSS JOIN LATERAL (
        SELECT CASE
            -- A dispatcher has claimed it for workers. Whether one has taken it, the window knows alone.
            WHEN i.state = 'in flight' AND i.consumer = 'penstock warm tier' THEN 'windowed'
            WHEN i.state = 'in flight' THEN 'taken'
            ELSE i.state
        END AS state
        FROM penstock.item_state(g.group_id, of_partition, of_offset) i
    ) i;
    IF states <@ ARRAY['done', 'nothing'] THEN
        state := 'done';
    ELSIF states && ARRAY['done', 'taken'] THEN
        state := 'taken';
    ELSE
        state := CASE WHEN 'windowed' = ANY (states) THEN 'windowed' ELSE 'waiting' END;
        can_cancel := NOT 'external' = ANY (kinds) IS TRUE AND states IS NOT NULL;
    END IF;
END
$$;
