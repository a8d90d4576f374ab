-- penstock.create_group(queue_name, group_name, config, subscription, from_time, mode)
--
-- Creates a group, and its queue on first use. It blocks no push and waits for none, however long its transaction
-- stays open. The first partitions are enrolled at once. The sweep enrols the others in chunks after the group is
-- committed, and continues until the pushes that were in progress then, and may not see the group, have ended.
--
-- Parameters: config - settings that override the queue's; subscription - 'all' (every message), 'new' (messages
-- pushed from now on) or 'time' (messages from from_time on); mode - 'ordered' (one claim per partition at a time),
-- 'shared' (competing consumers, many claims per partition, no order) or 'external' (the reader keeps its own
-- positions and reports them; see ensure_reader).
-- Returns: the group's id; raises duplicate_object when it exists.
-- Calls: require_names, checked_config, refresh_gate, require_read_committed, use_lock_timeout,
-- refuse_first_use, find_queue, queue_lock_class, enrol_partitions. Tables: queues, consumer_groups (insert), actions,
-- flows (read, lock).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.create_group(
    queue_name   text,
    group_name   text,
    config       jsonb       DEFAULT '{}',
    subscription text        DEFAULT 'all',
    from_time    timestamptz DEFAULT NULL,
    mode         text        DEFAULT 'ordered'
)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    queue   integer;
    created integer;
    wanted  jsonb := penstock.checked_config('{}', create_group.config, 'group');
    problem text;
    of_flow boolean;
BEGIN
    PERFORM penstock.require_names(queue_name, group_name);
    IF (create_group.subscription IN ('all', 'new', 'time')) IS NOT TRUE THEN
        problem := format(
            'subscription is %s but must be all, new or time', coalesce(to_json(create_group.subscription)::text, 'null')
        );
    END IF;
    IF problem IS NULL AND (create_group.mode IN ('ordered', 'shared', 'external')) IS NOT TRUE THEN
        problem := format(
            'mode is %s but must be ordered, shared or external', coalesce(to_json(create_group.mode)::text, 'null')
        );
    END IF;
    IF problem IS NULL AND (create_group.subscription = 'time') <> (create_group.from_time IS NOT NULL) THEN
        problem := 'a subscription from a time needs from_time, and no other has one';
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_read_committed('create_group');
    PERFORM penstock.use_lock_timeout();
    PERFORM penstock.refuse_first_use(ARRAY[queue_name]);
    LOOP
        INSERT INTO penstock.queues (name) VALUES (queue_name) ON CONFLICT DO NOTHING;
        queue := penstock.find_queue(queue_name);
        -- Shared, as a push has it: it keeps the queue from being deleted. In a new statement it is still there, or
        -- not.
        PERFORM pg_advisory_xact_lock_shared(penstock.queue_lock_class(), queue);
        EXIT WHEN EXISTS (SELECT 1 FROM penstock.queues q WHERE q.queue_id = queue);
    END LOOP;
    -- If it is that of an action. Locked, so that whoever is pausing the flow either is seen here or sees the group.
    SELECT f.paused INTO of_flow
    FROM penstock.actions a
    JOIN penstock.flows f ON f.name = a.flow_name
    WHERE a.queue = queue_name AND a.flow_name || '.' || a.action_name = group_name
    FOR SHARE OF f;
    INSERT INTO penstock.consumer_groups (
        queue_id, name, mode, config, subscription, from_time, enrolled_to, created_in, flow_paused
    )
    VALUES (
        queue, group_name, create_group.mode, wanted, create_group.subscription, create_group.from_time, 0,
        pg_current_xact_id(), coalesce(of_flow, false)
    )
    ON CONFLICT DO NOTHING
    RETURNING group_id INTO created;
    IF created IS NULL THEN
        RAISE EXCEPTION 'group "%" of queue "%" exists already', group_name, queue_name
            USING ERRCODE = 'duplicate_object', HINT = 'Change its settings with configure_group.';
    END IF;
    PERFORM penstock.refresh_gate(created);
    IF create_group.subscription <> 'new' THEN
        PERFORM penstock.enrol_partitions(created, 1000, creating => true);
    END IF;
    RETURN created;
END
$$;
