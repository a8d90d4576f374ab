-- penstock.serve_timer(kind, target_group, target, place)
--
-- Fires one timer that is due, as the sweep does.
--
-- Parameters: kind - 'journal' (a row of the journal; place is its version), 'claim' (a range of a shared group;
-- place is its first offset), 'late_wakeup' (place is the first offset that was pushed), 'enrolment' and
-- 'limits' (of a group) or 'scheduled' (place is its id); target_group and target - group and partition, 0 for none.
-- Returns: whether it was fired; false if a lock was not available, or if the state has changed already.
-- Calls: sweep_timer, offer_range, expire_range, free_slots, wake_partitions, enrol_partitions, look_at_limits, publish_scheduled. Tables: journal
-- (read), claims, late_wakeups (delete), partitions (lock).
CREATE OR REPLACE FUNCTION penstock.serve_timer(kind text, target_group integer, target bigint, place bigint)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    held penstock.claims;
BEGIN
    CASE kind
        WHEN 'journal' THEN
            RETURN coalesce((
                SELECT penstock.sweep_timer(j.group_id, j.partition_id, j.version, j.state)
                FROM penstock.journal j
                WHERE j.group_id = target_group AND j.partition_id = target AND j.version = place
            ), false);
        WHEN 'claim' THEN
            DELETE FROM penstock.claims c
            WHERE c.ctid = ANY (ARRAY(
                SELECT c.ctid FROM penstock.claims c
                WHERE c.group_id = target_group AND c.partition_id = target AND c.lo = place
                  AND c.due_at <= clock_timestamp()
                FOR UPDATE SKIP LOCKED
            ))
            RETURNING c.* INTO held;
            IF NOT FOUND THEN
                RETURN false;
            END IF;
            IF held.lease_id IS NULL THEN
                PERFORM penstock.offer_range(held, held.lo, held.hi, held.attempt, held.first_error, held.last_error);
            ELSE
                PERFORM penstock.expire_range(held);
                PERFORM penstock.free_slots(held.lease_id);
            END IF;
        WHEN 'late_wakeup' THEN
            PERFORM 1 FROM penstock.partitions p WHERE p.partition_id = target FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN false;
            END IF;
            PERFORM penstock.wake_partitions(ARRAY[target], ARRAY[place]);
            DELETE FROM penstock.late_wakeups w WHERE w.partition_id = target AND w.base_offset = place;
        WHEN 'enrolment' THEN
            PERFORM penstock.enrol_partitions(target_group, 1000);
        WHEN 'limits' THEN
            RETURN (SELECT l.woken > 0 FROM penstock.look_at_limits(target_group, 1000, '-infinity') l);
        WHEN 'scheduled' THEN
            RETURN (
                SELECT p.published > 0
                FROM penstock.publish_scheduled(1, '-infinity', '-infinity', false, place) p
            );
    END CASE;
    RETURN true;
END
$$;
