-- penstock.fire_schedule(schedule_name, seen_revision, seen_done_to, slots, new_done_to, new_next_at)
--
-- Pushes a message for each slot that is due, and moves the schedule on: one transaction, so that a slot is pushed once
-- however many processes try and whichever of them are killed. It takes effect only if the schedule is as the caller saw
-- it, and is not paused. Before a slot is due, only a producer can move it on: to a slot that was computed anew, by other
-- rules of its time zone. It waits for nobody who is just firing the same schedule.
--
-- Parameters: seen_revision and seen_done_to - what the caller saw of the schedule; slots - what to push, in order,
-- each due and later than what was done; may be empty; new_done_to - all slots up to it are done; new_next_at - the first slot after it, null if there is none.
-- Returns: one row. outcome - 'fired', 'stale' (somebody else was faster, it was changed, paused or deleted, or it is not due), or
-- 'busy' (somebody is just firing or changing it: look again soon); if fired, where the messages went.
-- Calls: require_read_committed, require_moments, push_slots, policy_clock, may_push. Tables: schedules (lock, update).
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.fire_schedule(
    schedule_name text, seen_revision bigint, seen_done_to timestamptz, slots timestamptz[],
    new_done_to timestamptz, new_next_at timestamptz
)
RETURNS TABLE (
    outcome text, pushed_to text, partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    kept   record;
    pushed record;
BEGIN
    PERFORM penstock.require_read_committed('fire_schedule');
    PERFORM penstock.require_moments(VARIADIC slots || ARRAY[new_done_to, new_next_at]);
    IF new_done_to >= seen_done_to IS NOT TRUE OR new_done_to < ANY (slots) OR array_position(slots, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'new_done_to is % but must not be before what was done (%), nor before a slot', new_done_to, seen_done_to
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Whoever fires need not be allowed to push: it takes what can be slots, and nothing else.
    IF seen_done_to >= ANY (slots) OR cardinality(slots) > 1000
        OR slots <> ARRAY(SELECT DISTINCT u.slot FROM unnest(slots) u (slot) ORDER BY u.slot)
    THEN
        RAISE EXCEPTION 'slots are at most 1000, each later than the one before and than what was done (%)', seen_done_to
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT s.paused, s.revision, s.done_to, s.next_at INTO kept
    FROM penstock.schedules s
    WHERE s.name = schedule_name
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        outcome := CASE
            WHEN EXISTS (SELECT 1 FROM penstock.schedules s WHERE s.name = schedule_name) THEN 'busy' ELSE 'stale'
        END;
        RETURN NEXT;
        RETURN;
    END IF;
    IF kept.paused OR kept.revision <> seen_revision OR kept.done_to <> seen_done_to THEN
        outcome := 'stale';
        RETURN NEXT;
        RETURN;
    END IF;
    IF new_done_to > seen_done_to AND new_done_to > penstock.policy_clock() THEN
        -- Not due: the clock has stepped back since the caller looked, or the caller is up to something.
        outcome := 'stale';
        RETURN NEXT;
        RETURN;
    END IF;
    IF (kept.next_at <= penstock.policy_clock()) IS NOT TRUE AND NOT penstock.may_push() THEN
        -- Nothing of it is due: to compute its next slot anew is for those who may also define it.
        outcome := 'stale';
        RETURN NEXT;
        RETURN;
    END IF;
    outcome := 'fired';
    IF cardinality(slots) > 0 THEN
        SELECT * INTO pushed FROM penstock.push_slots(schedule_name, slots);
        pushed_to := pushed.pushed_to;
        partition_id := pushed.partition_id;
        first_offset := pushed.first_offset;
        message_count := pushed.message_count;
        created_at := pushed.created_at;
        UPDATE penstock.schedules s
        SET last_slot = slots[cardinality(slots)], last_at = penstock.policy_clock(), last_id = pushed.last_id,
            error = NULL, failed_at = NULL
        WHERE s.name = schedule_name;
    END IF;
    UPDATE penstock.schedules s SET done_to = new_done_to, next_at = new_next_at WHERE s.name = schedule_name;
    RETURN NEXT;
END
$$;
