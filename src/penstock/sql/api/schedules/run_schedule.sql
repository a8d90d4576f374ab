-- penstock.run_schedule(schedule_name)
--
-- Pushes the message of a schedule now, whether it is paused or not. Its slots stay as they are; the header that says
-- which slot it is has the current time.
--
-- Parameters: the name.
-- Returns: where the message went; raises undefined_object.
-- Calls: use_lock_timeout, require_schedule, push_slots, policy_clock. Tables: schedules (update).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.run_schedule(schedule_name text)
RETURNS TABLE (pushed_to text, partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    now_here timestamptz := penstock.policy_clock();
    newest   uuid;
BEGIN
    PERFORM penstock.use_lock_timeout();
    PERFORM penstock.require_schedule(schedule_name);
    SELECT p.pushed_to, p.partition_id, p.first_offset, p.message_count, p.created_at, p.last_id
    INTO pushed_to, partition_id, first_offset, message_count, created_at, newest
    FROM penstock.push_slots(schedule_name, ARRAY[now_here]) p;
    UPDATE penstock.schedules s SET last_at = now_here, last_id = newest WHERE s.name = schedule_name;
    RETURN NEXT;
END
$$;
