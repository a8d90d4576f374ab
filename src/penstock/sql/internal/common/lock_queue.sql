-- penstock.lock_queue(queue)
--
-- Takes a queue's exclusive lock, after all pushes in progress have ended. A waiting exclusive lock blocks all later
-- pushes, so this waits in short periods with pauses between them: an open transaction delays the caller, and not the
-- queue.
--
-- Parameters: queue - the queue's id.
-- Returns: nothing; raises lock_not_available after the caller's lock_timeout.
-- Calls: queue_lock_class. Tables: none.
CREATE OR REPLACE FUNCTION penstock.lock_queue(queue integer)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    allowed  text := current_setting('lock_timeout');
    deadline timestamptz := CASE WHEN allowed = '0' THEN 'infinity' ELSE clock_timestamp() + allowed::interval END;
BEGIN
    LOOP
        BEGIN
            PERFORM set_config('lock_timeout', '100ms', true);
            PERFORM pg_advisory_xact_lock(penstock.queue_lock_class(), queue);
            PERFORM set_config('lock_timeout', allowed, true);
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            IF clock_timestamp() > deadline THEN
                RAISE EXCEPTION 'a push to this queue has been in progress for longer than %', allowed
                    USING ERRCODE = 'lock_not_available';
            END IF;
        END;
        PERFORM pg_sleep(0.1);
    END LOOP;
END
$$;
