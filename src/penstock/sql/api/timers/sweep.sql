-- penstock.sweep(max_rows, since, durable)
--
-- Does what time brings: ends claims whose lease has expired, wakes partitions whose delay, backoff or quiet period is
-- over, looks at parked ones once more, gives scheduled messages their offsets, answers doorbells, takes up partitions
-- for new groups, and trims the journal behind the newest rows. Every consumer calls it now and then, in a transaction
-- of its own; one works at a time and the others return at once. It never waits for a lock, so somebody's open
-- transaction cannot stop the timers. With nothing due it writes nothing.
--
-- No timer holds up another one. If the whole fails, nothing of it has happened, and all is done once more, one timer after
-- the other. One that fails is put off, longer each time (failing_timers); list_failing_timers shows it, and `penstock
-- doctor` does.
--
-- Parameters: max_rows - how many timers to serve, at most, in the two seconds or so that it takes at most; since - timers that were due before are left alone. Served timers
-- leave dead index entries behind, which nothing removes while somebody holds a transaction open; whoever sweeps often
-- begins where the last sweep says, and every few seconds at the beginning, for what was locked or committed late;
-- durable - false commits the caller's transaction without waiting for the disk, unless scheduled messages were published:
-- all else that a crash of the server undoes is due once more. Only for a caller who does nothing else in it.
-- Returns: what was done; when the next timer is due, if that is within ten seconds; and where the next sweep may
-- begin, null when this one did not get to the end. No row when another sweep is at work.
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
        RAISE EXCEPTION 'max_rows must be above 0, and since must not be null' USING ERRCODE = 'invalid_parameter_value';
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
            -- What fails is none of the timers: say so, or nobody would know.
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
