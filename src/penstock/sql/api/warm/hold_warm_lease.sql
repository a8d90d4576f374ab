-- penstock.hold_warm_lease(target_group, holder, held_epoch, hold_for, state, items, bytes, longest_lease, transitions)
--
-- Takes the lease of a group's window in Valkey, or extends it: the heartbeat of a dispatcher. It gets a lease that
-- nobody has or that has ended, with the next epoch.
--
-- Parameters: holder - who calls; held_epoch - the epoch that it holds, null for none; hold_for - seconds, 0 to give the
-- lease back; the others are shown to operators.
-- Returns: one row: the epoch, null where another dispatcher has the lease or took it over; obstacle - why the group
-- cannot be served from Valkey; and the settings that a window needs. No row where there is no such group.
-- Calls: warm_obstacle, effective_group_settings. Tables: consumer_groups (lock), queues (read), warm_leases (insert,
-- update).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.hold_warm_lease(
    target_group  integer,
    holder        text,
    held_epoch    bigint  DEFAULT NULL,
    hold_for      float8  DEFAULT 10,
    state         text    DEFAULT 'warm',
    items         bigint  DEFAULT 0,
    bytes         bigint  DEFAULT 0,
    longest_lease float8  DEFAULT 0,
    transitions   bigint  DEFAULT 0
)
RETURNS TABLE (
    epoch bigint, obstacle text, mode text, capacity bigint, most_bytes bigint, refill_below float8, again_at float8,
    lease_time float8, longest float8
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF hold_for < 0 OR hold_for > 3600 OR length(holder) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'hold_for is % but must be from 0 to 3600 seconds, and a holder has 1 to 255 characters', hold_for
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Against whoever deletes the group: without the lock its lease would be deleted, and inserted anew here.
    PERFORM 1 FROM penstock.consumer_groups g WHERE g.group_id = target_group FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO penstock.warm_leases AS w (group_id, epoch, dispatcher, deadline)
    VALUES (target_group, 1, holder, clock_timestamp() + make_interval(secs => hold_for))
    ON CONFLICT (group_id) DO UPDATE SET
        epoch = CASE WHEN w.epoch = held_epoch AND w.dispatcher = holder THEN w.epoch ELSE w.epoch + 1 END,
        dispatcher = holder, deadline = excluded.deadline,
        longest_lease = greatest(w.longest_lease, hold_warm_lease.longest_lease),
        since = CASE WHEN w.state <> hold_warm_lease.state THEN clock_timestamp() ELSE w.since END,
        state = hold_warm_lease.state, items = hold_warm_lease.items, bytes = hold_warm_lease.bytes,
        transitions = greatest(w.transitions, hold_warm_lease.transitions)
    WHERE (w.epoch = held_epoch AND w.dispatcher = holder) OR (held_epoch IS NULL AND w.deadline <= clock_timestamp());
    RETURN QUERY
    SELECT
        CASE WHEN w.dispatcher = holder AND (held_epoch IS NULL OR w.epoch = held_epoch) THEN w.epoch END,
        penstock.warm_obstacle(g.group_id), g.mode,
        (s.settings ->> 'in_memory_queue_size')::bigint, (s.settings ->> 'in_memory_bytes')::bigint,
        (s.settings ->> 'warm_refill_below')::float8, (s.settings ->> 'warm_again_at')::float8,
        (s.settings ->> 'lease_time')::float8, w.longest_lease
    FROM penstock.consumer_groups g
    JOIN penstock.queues q ON q.queue_id = g.queue_id
    JOIN penstock.warm_leases w ON w.group_id = g.group_id
    CROSS JOIN LATERAL (SELECT penstock.effective_group_settings(q.settings, g.config) AS settings) s
    WHERE g.group_id = target_group;
END
$$;
