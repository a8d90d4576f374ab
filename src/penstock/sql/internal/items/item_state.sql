-- penstock.item_state(reader, target, wanted)
--
-- Says what a message is to a group, by the group's positions: nothing is searched.
--
-- Parameters: the ids of group and partition, and the offset of the message, which is below the head.
-- Returns: state - 'waiting', 'in flight', 'delayed' (until due_at), 'retrying' (after a failure, from due_at on), 'done',
-- which may also be dead or cancelled, or null: it is not for this group; attempt - deliveries that count, this one included;
-- consumer - who holds it; error - the last one.
-- Calls: newest_state, offset_at. Tables: consumer_groups, partitions, claims, ready (read).
CREATE OR REPLACE FUNCTION penstock.item_state(
    reader integer, target bigint, wanted bigint,
    OUT state text, OUT attempt integer, OUT due_at timestamptz, OUT consumer text, OUT error text
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    of_group record;
    j        penstock.journal;
    c        penstock.claims;
    y        penstock.ready;
BEGIN
    SELECT g.mode, g.subscription, CASE WHEN g.subscription = 'new' THEN g.created_at ELSE g.from_time END AS since
    INTO of_group
    FROM penstock.consumer_groups g
    JOIN penstock.partitions p ON p.partition_id = target AND p.queue_id = g.queue_id
    WHERE g.group_id = reader AND (p.lane_of IS NULL OR p.lane_of = reader);
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT n.* INTO j FROM penstock.newest_state(reader, target) n;
    IF j.version IS NULL THEN
        IF of_group.subscription = 'all' OR wanted >= penstock.offset_at(target, of_group.since) THEN
            state := 'waiting';
            attempt := 0;
        END IF;
        RETURN;
    END IF;
    attempt := 0;
    IF of_group.mode <> 'shared' THEN
        IF wanted < j.committed THEN
            state := 'done';
            RETURN;
        END IF;
        state := 'waiting';
        IF wanted = j.committed THEN
            attempt := j.attempt;
            error := j.last_error;
        END IF;
        IF j.state = 'c' AND wanted < j.claimed_to AND j.due_at > clock_timestamp() THEN
            state := 'in flight';
            attempt := greatest(attempt, 1);
            consumer := j.consumer;
            due_at := j.due_at;
        ELSIF j.state = 't' AND wanted = j.committed THEN
            state := CASE WHEN j.attempt > 0 AND error IS DISTINCT FROM 'snoozed' THEN 'retrying' ELSE 'delayed' END;
            due_at := j.due_at;
        ELSIF attempt > 0 AND j.state = 'r' THEN
            state := 'retrying';
        END IF;
        error := nullif(error, 'snoozed');
        RETURN;
    END IF;
    IF wanted >= j.claimed_to THEN
        state := 'waiting';
        RETURN;
    END IF;
    SELECT n.* INTO c FROM penstock.claims n
    WHERE n.group_id = reader AND n.partition_id = target AND n.lo <= wanted
    ORDER BY n.lo DESC
    LIMIT 1;
    IF c.hi > wanted THEN
        attempt := c.attempt;
        error := c.last_error;
        due_at := c.due_at;
        consumer := c.consumer;
        state := CASE
            WHEN c.lease_id IS NULL AND c.attempt > 0 THEN 'retrying'
            WHEN c.lease_id IS NULL THEN 'delayed'
            WHEN c.due_at > clock_timestamp() THEN 'in flight'
            ELSE 'waiting'
        END;
        RETURN;
    END IF;
    SELECT n.* INTO y FROM penstock.ready n
    WHERE n.group_id = reader AND n.partition_id = target AND n.lo IS NOT NULL AND n.lo <= wanted
    ORDER BY n.lo DESC
    LIMIT 1;
    state := CASE WHEN y.hi > wanted THEN CASE WHEN y.attempt > 0 THEN 'retrying' ELSE 'waiting' END ELSE 'done' END;
    IF state <> 'done' THEN
        attempt := y.attempt;
        error := y.last_error;
    END IF;
END
$$;
