-- penstock.sweep(max_rows, since)
--
-- Does what time brings: ends claims whose lease has expired, wakes partitions whose delay, backoff or quiet period is
-- over, looks at parked ones once more, gives scheduled messages their offsets, answers doorbells, takes up partitions
-- for new groups, and trims the journal behind the newest rows. Every consumer calls it now and then, in a transaction
-- of its own; one works at a time and the others return at once. It never waits for a lock, so somebody's open
-- transaction cannot stop the timers. With nothing due it writes nothing.
--
-- Parameters: max_rows - how many timers to serve; since - timers that were due before are left alone. Served timers
-- leave dead index entries behind, which nothing removes while somebody holds a transaction open; whoever sweeps often
-- begins where the last sweep says, and every few seconds at the beginning, for what was locked or committed late.
-- Returns: what was done; when the next timer is due, if that is within ten seconds; and where the next sweep may
-- begin, null when this one did not get to the end. No row when another sweep is at work.
-- Calls: sweep_timer, fail_range, offer_range, wake_partitions, enrol_partitions, publish_scheduled.
-- Tables: sweep_lock (lock), journal, claims, doorbells (delete), partitions (lock), consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.sweep(max_rows integer DEFAULT 1000, since timestamptz DEFAULT '-infinity')
RETURNS TABLE (woken integer, trimmed integer, enrolled integer, next_due timestamptz, swept_to timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    now_here timestamptz := clock_timestamp();
    -- Settled claims leave dead entries in what is to come, too: not further than this.
    soon     timestamptz := now_here + interval '10 seconds';
    timer    record;
    held     penstock.claims;
    visited  integer;
    after_due timestamptz := since;
BEGIN
    BEGIN
        -- A table that only the owner can lock, in a mode that conflicts with itself alone and leaves no trace.
        LOCK TABLE penstock.sweep_lock IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN;
    END;
    PERFORM penstock.require_read_committed('sweep');
    woken := 0;
    enrolled := 0;
    trimmed := 0;
    -- In chunks, until enough was done: a chunk that is busy altogether must not hide those after it.
    LOOP
        -- Most timers are of claims that were settled long ago: those go all at once, with their predecessors. Rows with
        -- a timer of their own wait for it: that keeps every claim as history for its lease time.
        WITH due AS MATERIALIZED (
            SELECT j.group_id, j.partition_id, j.version, j.state FROM penstock.journal j
            WHERE j.due_at > after_due AND j.due_at <= now_here
            ORDER BY j.due_at
            LIMIT max_rows
        ), old AS MATERIALIZED (
            SELECT o.ctid
            FROM due d
            JOIN penstock.journal o ON o.group_id = d.group_id AND o.partition_id = d.partition_id
                AND o.version BETWEEN d.version - CASE WHEN d.state = 'c' THEN 8 ELSE 0 END AND d.version
                AND (o.version = d.version OR o.due_at IS NULL)
            WHERE EXISTS (
                SELECT 1 FROM penstock.journal n
                WHERE n.group_id = d.group_id AND n.partition_id = d.partition_id AND n.version > d.version
            )
            FOR UPDATE OF o SKIP LOCKED
        )
        DELETE FROM penstock.journal j WHERE j.ctid = ANY (ARRAY(SELECT o.ctid FROM old o));
        GET DIAGNOSTICS visited = ROW_COUNT;
        trimmed := trimmed + visited;
        visited := 0;
        FOR timer IN
            SELECT j.group_id, j.partition_id, j.version, j.state, j.due_at FROM penstock.journal j
            WHERE j.due_at > after_due AND j.due_at <= now_here
            ORDER BY j.due_at
            LIMIT max_rows
        LOOP
            visited := visited + 1;
            IF penstock.sweep_timer(timer.group_id, timer.partition_id, timer.version, timer.state) THEN
                woken := woken + 1;
            END IF;
        END LOOP;
        IF visited < max_rows THEN
            -- What is being written now with an earlier time, or is locked, has these two seconds to become visible.
            swept_to := now_here - interval '2 seconds';
        END IF;
        EXIT WHEN visited < max_rows OR woken + trimmed >= max_rows;
        after_due := timer.due_at;
    END LOOP;
    visited := 0;
    FOR held IN
        DELETE FROM penstock.claims c
        USING (
            SELECT c.ctid FROM penstock.claims c
            WHERE c.due_at > since AND c.due_at <= now_here
            ORDER BY c.due_at
            LIMIT max_rows
            FOR UPDATE SKIP LOCKED
        ) due
        WHERE c.ctid = due.ctid
        RETURNING c.*
    LOOP
        IF held.lease_id IS NULL THEN
            PERFORM penstock.offer_range(held, held.lo, held.hi, held.attempt, held.first_error, held.last_error);
        ELSE
            PERFORM penstock.fail_range(held, NULL, 'the lease expired', 'lease expired', 0);
        END IF;
        woken := woken + 1;
        visited := visited + 1;
    END LOOP;
    IF visited >= max_rows THEN
        swept_to := NULL;
    END IF;
    FOR timer IN
        SELECT d.partition_id, d.base_offset FROM penstock.doorbells d
        JOIN penstock.partitions p ON p.partition_id = d.partition_id
        LIMIT max_rows
        FOR NO KEY UPDATE OF p SKIP LOCKED
    LOOP
        PERFORM penstock.wake_partitions(ARRAY[timer.partition_id], ARRAY[timer.base_offset]);
        DELETE FROM penstock.doorbells d
        WHERE d.partition_id = timer.partition_id AND d.base_offset = timer.base_offset;
        woken := woken + 1;
    END LOOP;
    FOR timer IN
        SELECT g.group_id FROM penstock.consumer_groups g
        WHERE g.enrolled_to IS NOT NULL
        ORDER BY g.group_id
    LOOP
        enrolled := enrolled + penstock.enrol_partitions(timer.group_id, max_rows);
    END LOOP;
    SELECT least(
        (SELECT j.due_at FROM penstock.journal j WHERE j.due_at > now_here AND j.due_at < soon ORDER BY j.due_at LIMIT 1),
        (SELECT c.due_at FROM penstock.claims c WHERE c.due_at > now_here AND c.due_at < soon ORDER BY c.due_at LIMIT 1)
    ) INTO next_due;
    SELECT woken + p.published, least(sweep.next_due, p.next_due), CASE WHEN p.complete THEN swept_to END
    INTO woken, next_due, swept_to
    FROM penstock.publish_scheduled(max_rows, since, soon) p;
    RETURN NEXT;
END
$$;
