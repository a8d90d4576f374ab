-- penstock.delete_group(queue_name, group_name)
--
-- Deletes a group with its positions, dead letters and private lane. Waits for pushes that are under way, at most
-- `penstock.lock_timeout`. Claims that are held lose their lease.
--
-- Parameters: the names.
-- Returns: nothing; raises undefined_object when there is no such group.
-- Calls: find_group, use_lock_timeout, lock_queue, delete_partitions, delete_positions. Tables: sweep_lock, consumer_groups (lock,
-- delete), dead_letters (delete).
CREATE OR REPLACE FUNCTION penstock.delete_group(queue_name text, group_name text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    target integer := penstock.find_group(queue_name, group_name);
BEGIN
    PERFORM penstock.use_lock_timeout();
    PERFORM penstock.lock_queue(penstock.find_queue(queue_name));
    -- Against those who take up partitions for it: enrolment, seek, resync.
    PERFORM 1 FROM penstock.consumer_groups g WHERE g.group_id = target FOR UPDATE;
    PERFORM penstock.delete_partitions(
        ARRAY(SELECT p.partition_id FROM penstock.partitions p WHERE p.lane_of = target)
    );
    PERFORM penstock.delete_positions(ARRAY[target], NULL);
    -- A sweep may have woken or parked some of them meanwhile; now none is at work until we have committed.
    LOCK TABLE penstock.sweep_lock IN SHARE UPDATE EXCLUSIVE MODE;
    PERFORM penstock.delete_positions(ARRAY[target], NULL);
    DELETE FROM penstock.dead_letters d WHERE d.group_id = target;
    DELETE FROM penstock.consumer_groups g WHERE g.group_id = target;
END
$$;
