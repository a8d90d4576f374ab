-- penstock.sweep(max_rows, since, durable)
--
-- Fires due timers: ends claims whose lease has expired, wakes partitions whose delay, backoff or quiet period is
-- over, checks parked ones once more, gives scheduled messages their offsets, fires late wake-ups, enrols partitions
-- in new groups, and trims the journal. Every consumer calls it now and then, in a transaction of its own; one sweep
-- works at a time, and the others return at once. It never waits for a lock, so an open transaction cannot stop the
-- timers. If nothing is due it writes nothing.
--
-- A timer that fails does not hold up others. If the sweep fails as a whole, nothing of it has happened, and each
-- timer is fired separately. A timer that fails is postponed, longer each time (failing_timers); list_failing_timers
-- and `penstock doctor` show it.
--
-- Parameters: max_rows - the largest number of timers to fire; it takes about two seconds at most; since - timers
-- that were due before are left alone. Fired timers leave dead index entries, which cannot be removed while somebody
-- holds a transaction open; a frequent caller passes swept_to of the last sweep, and every few seconds the default,
-- for timers that were locked or committed late; durable - false commits the caller's transaction without waiting for
-- the disk, unless scheduled messages were published: any other timer that a crash undoes is due once more. Only for a
-- caller who does nothing else in the transaction.
-- Returns: what was done; when the next timer is due, if within ten seconds; and where the next sweep may begin, null
-- if this one did not get to the end. No row while another sweep is working.
-- Calls: require_read_committed, sweep_together, sweep_apart, retry_timers, put_off. Tables: sweep_lock (lock),
-- failing_timers (read, delete).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.sweep(
    max_rows integer DEFAULT 1000, since timestamptz DEFAULT '-infinity', durable boolean DEFAULT true
)
RETURNS TABLE (woken integer, trimmed integer, enrolled integer, next_due timestamptz, swept_to timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    passing boolean;
    problem text;
    state   text;
    apart   record;
BEGIN
    IF (max_rows > 0) IS NOT TRUE OR since IS NULL THEN
        RAISE EXCEPTION 'max_rows is % and must be above 0; since is % and must not be null', max_rows, since
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    BEGIN
        -- A table that only the owner can lock, in a mode that conflicts with itself alone and leaves no trace.
        LOCK TABLE penstock.sweep_lock IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN;
    END;
    PERFORM penstock.require_read_committed('sweep');
    passing := EXISTS (SELECT 1 FROM penstock.failing_timers f WHERE f.kind <> 'maintenance');
    BEGIN
        SELECT t.* INTO woken, trimmed, enrolled, next_due, swept_to
        FROM penstock.sweep_together(max_rows, since, passing, durable) t;
        IF passing THEN
            DELETE FROM penstock.failing_timers f WHERE f.kind = 'sweep';
        END IF;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
    END;
    IF problem IS NOT NULL THEN
        SELECT a.* INTO apart FROM penstock.sweep_apart(max_rows, since) a;
        woken := apart.woken;
        trimmed := 0;
        enrolled := 0;
        next_due := NULL;
        swept_to := NULL;
        IF apart.failed = 0 THEN
            -- No single timer fails, so the failure is recorded as that of the sweep.
            PERFORM penstock.put_off('sweep', 0, 0, 0, state, problem);
        END IF;
    END IF;
    IF passing THEN
        woken := woken + penstock.retry_timers(max_rows);
    END IF;
    IF passing OR problem IS NOT NULL THEN
        next_due := least(next_due, (
            SELECT min(f.retry_at) FROM penstock.failing_timers f WHERE f.kind NOT IN ('sweep', 'maintenance')
        ));
    END IF;
    RETURN NEXT;
END
$$;
