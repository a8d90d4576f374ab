-- penstock.define_schedule(schedule_name, kind, spec, tz, start_at, queue_name, value, partition_name, key, headers,
--                          missed, source, origin, seen_revision, seen_done_to, new_done_to, new_next_at)
--
-- Creates a schedule, or changes its definition, if it is as the caller saw it. A schedule that was paused stays so.
--
-- Parameters: kind - 'every' or 'cron'; spec, tz, start_at - when its slots are, kept for the clients, who compute them;
-- queue_name to headers - what it pushes, as in push; missed - 'skip', 'last' or 'all'; source - 'code' or 'command';
-- origin - the file that declares it; seen_revision and seen_done_to - what the caller saw, 0 and null: that there was
-- none; new_done_to and new_next_at - where its slots go on, null: as before.
-- Returns: whether it was as the caller saw it; if not, nothing has changed.
-- Calls: use_lock_timeout, require_names, require_moments, require_messages, policy_clock. Tables: schedules (insert, lock, update).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.define_schedule(
    schedule_name  text,
    kind           text,
    spec           text,
    tz             text,
    start_at       timestamptz,
    queue_name     text,
    value          bytea,
    partition_name text,
    key            text,
    headers        jsonb,
    missed         text,
    source         text,
    origin         text,
    seen_revision  bigint,
    seen_done_to   timestamptz,
    new_done_to    timestamptz,
    new_next_at    timestamptz
)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
#variable_conflict use_variable
DECLARE
    now_here timestamptz := penstock.policy_clock();
    kept     record;
BEGIN
    PERFORM penstock.use_lock_timeout();
    PERFORM penstock.require_names(queue_name, coalesce(partition_name, 'any'));
    PERFORM penstock.require_moments(start_at, new_done_to, new_next_at);
    PERFORM penstock.require_messages(ARRAY[value], ARRAY[key], ARRAY[headers], NULL);
    IF seen_revision = 0 THEN
        INSERT INTO penstock.schedules (
            name, kind, spec, tz, start_at, queue, value, partition, key, headers, missed, source, origin,
            done_to, next_at, created_at, changed_at
        )
        VALUES (
            schedule_name, kind, spec, tz, start_at, queue_name, value, partition_name, key, headers, missed, source,
            origin, new_done_to, new_next_at, now_here, now_here
        )
        ON CONFLICT ON CONSTRAINT schedules_pkey DO NOTHING;
        RETURN FOUND;
    END IF;
    SELECT s.revision, s.done_to INTO kept FROM penstock.schedules s WHERE s.name = schedule_name FOR UPDATE;
    IF NOT FOUND OR kept.revision <> seen_revision OR kept.done_to <> seen_done_to THEN
        RETURN false;
    END IF;
    IF new_done_to < kept.done_to THEN
        RAISE EXCEPTION 'the slots of schedule "%" are done to % and cannot be done to %',
            schedule_name, kept.done_to, new_done_to
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE penstock.schedules s
    SET kind = kind, spec = spec, tz = tz, start_at = start_at, queue = queue_name, value = value,
        partition = partition_name, key = key, headers = headers, missed = missed, source = source, origin = origin,
        undeclared_at = NULL, error = NULL, failed_at = NULL, revision = s.revision + 1, changed_at = now_here,
        done_to = coalesce(new_done_to, s.done_to),
        next_at = CASE WHEN new_done_to IS NULL THEN s.next_at ELSE new_next_at END
    WHERE s.name = schedule_name;
    RETURN true;
END
$$;
