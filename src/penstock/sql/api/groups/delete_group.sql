-- penstock.delete_group(queue_name, group_name)
--
-- Deletes a group with its positions, dead letters and private lane. Waits at most `penstock.lock_timeout` for pushes
-- in progress and for transactions that settle claims of the group. Claims that are held lose their lease.
--
-- Pushes wait for the queue's lock, so it is not held while this function waits: it is released and requested again.
--
-- Parameters: the names.
-- Returns: nothing; raises undefined_object when there is no such group.
-- Calls: find_group, use_lock_timeout, lock_queue, delete_partitions, delete_positions, find_queue. Tables:
-- sweep_lock, consumer_groups (lock, delete), dead_letters (delete), partitions (read).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.delete_group(queue_name text, group_name text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    target   integer := penstock.find_group(queue_name, group_name);
    queue    integer := penstock.find_queue(queue_name);
    allowed  text;
    deadline timestamptz;
BEGIN
    PERFORM penstock.use_lock_timeout();
    allowed := current_setting('lock_timeout');
    deadline := CASE WHEN allowed = '0' THEN 'infinity' ELSE clock_timestamp() + allowed::interval END;
    -- Against those who append journal rows for it: enrolment, seek, resync.
    PERFORM 1 FROM penstock.consumer_groups g WHERE g.group_id = target FOR UPDATE;
    LOOP
        -- Waits for all who hold something of the group. What they have left then is gone already when the lock is got.
        PERFORM penstock.delete_positions(ARRAY[target], NULL);
        BEGIN
            PERFORM penstock.lock_queue(queue);
            PERFORM set_config('lock_timeout', '100ms', true);
            PERFORM penstock.delete_partitions(
                ARRAY(SELECT p.partition_id FROM penstock.partitions p WHERE p.lane_of = target)
            );
            PERFORM penstock.delete_positions(ARRAY[target], NULL);
            -- A sweep may have woken or parked some of them meanwhile; now none is at work until we have committed.
            LOCK TABLE penstock.sweep_lock IN SHARE UPDATE EXCLUSIVE MODE;
            PERFORM penstock.delete_positions(ARRAY[target], NULL);
            DELETE FROM penstock.dead_letters d WHERE d.group_id = target;
            DELETE FROM penstock.consumer_groups g WHERE g.group_id = target;
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            -- With all that was done in this block, the queue's lock is given back.
            IF clock_timestamp() > deadline THEN
                RAISE;
            END IF;
        END;
        PERFORM pg_sleep(0.1);
    END LOOP;
END
$$;
