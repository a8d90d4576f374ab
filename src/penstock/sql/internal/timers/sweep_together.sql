-- penstock.sweep_together(max_rows, since, passing, durable)
--
-- Fires all due timers in one piece: if one fails, all of them fail. The caller holds the sweep's lock.
--
-- A timer may take seconds: a dead letter of hundreds of megabytes does. After two seconds it fires one more of each
-- kind and ends, so that the work is committed before the caller's deadline; the next sweep continues from there.
--
-- Parameters: max_rows, since and durable as in sweep; passing - whether to skip timers that were postponed.
-- Returns: as sweep.
-- Calls: sweep_timer, expire_range, free_slots, offer_range, wake_partitions, enrol_partitions, publish_scheduled, is_put_off,
-- look_at_limits.
-- Tables: journal, claims, late_wakeups (delete), partitions (lock), consumer_groups, scheduled, limited_keys (read).
CREATE OR REPLACE FUNCTION penstock.sweep_together(
    max_rows integer, since timestamptz, passing boolean, durable boolean,
    OUT woken integer, OUT trimmed integer, OUT enrolled integer, OUT next_due timestamptz, OUT swept_to timestamptz
)
LANGUAGE plpgsql
AS $$
DECLARE
    now_here timestamptz := clock_timestamp();
    until    timestamptz := now_here + interval '2 seconds';
    -- Settled claims leave dead entries in what is to come, too: not further than this.
    soon     timestamptz := now_here + interval '10 seconds';
    first    record;
    timer    record;
    held     penstock.claims;
    visited  integer;
    ended    boolean := true;
    after_due timestamptz := since;
BEGIN
    woken := 0;
    enrolled := 0;
    trimmed := 0;
    -- Most sweeps find little: what there is not is not looked for again.
    SELECT
        (
            SELECT j.due_at FROM penstock.journal j WHERE j.due_at > since AND j.due_at < soon
            ORDER BY j.due_at LIMIT 1
        ) AS timer,
        (
            SELECT c.due_at FROM penstock.claims c WHERE c.due_at > since AND c.due_at < soon
            ORDER BY c.due_at LIMIT 1
        ) AS claim,
        (
            SELECT s.due_at FROM penstock.scheduled s WHERE s.due_at >= since AND s.due_at < soon
            ORDER BY s.due_at LIMIT 1
        ) AS scheduled,
        -- A second look is due within milliseconds: one that seems to be due later was parked before the clock went back.
        EXISTS (
            SELECT 1 FROM penstock.journal j WHERE j.state = 'p' AND j.due_at > now_here + interval '2 seconds'
        ) AS parked_later,
        (
            SELECT k.look_at FROM penstock.limited_keys k WHERE k.look_at > since AND k.look_at < soon
            ORDER BY k.look_at LIMIT 1
        ) AS limited,
        -- Likewise: decided before the clock went back.
        EXISTS (
            SELECT 1 FROM penstock.limited_keys k WHERE k.look_at IS NOT NULL AND k.looked_at > now_here + interval '2 seconds'
        ) AS limited_later,
        EXISTS (SELECT 1 FROM penstock.late_wakeups w) AS late_wakeup,
        EXISTS (SELECT 1 FROM penstock.consumer_groups g WHERE g.enrolled_to IS NOT NULL) AS enrolling
    INTO first;
    swept_to := now_here - interval '2 seconds';
    -- In chunks, until enough was done: a chunk that is busy altogether must not hide those after it.
    WHILE first.timer <= now_here LOOP
        swept_to := NULL;
        -- Most timers are of claims that were settled long ago: those go all at once, with their predecessors. Rows
        -- with a timer of their own wait for it: that keeps every claim as history for its lease time.
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
            CONTINUE WHEN passing AND penstock.is_put_off('journal', timer.group_id, timer.partition_id, timer.version);
            IF penstock.sweep_timer(timer.group_id, timer.partition_id, timer.version, timer.state) THEN
                woken := woken + 1;
            END IF;
            ended := clock_timestamp() < until;
            EXIT WHEN NOT ended;
        END LOOP;
        IF visited < max_rows AND ended THEN
            -- What is being written now with an earlier time, or is locked, has these two seconds to become visible.
            swept_to := now_here - interval '2 seconds';
        END IF;
        EXIT WHEN NOT ended;
        EXIT WHEN visited < max_rows OR woken + trimmed >= max_rows;
        after_due := timer.due_at;
    END LOOP;
    IF first.parked_later THEN
        FOR timer IN
            SELECT j.group_id, j.partition_id, j.version FROM penstock.journal j
            WHERE j.state = 'p' AND j.due_at > now_here + interval '2 seconds'
            ORDER BY j.due_at
            LIMIT max_rows
        LOOP
            CONTINUE WHEN passing AND penstock.is_put_off('journal', timer.group_id, timer.partition_id, timer.version);
            IF penstock.sweep_timer(timer.group_id, timer.partition_id, timer.version, 'p') THEN
                woken := woken + 1;
            END IF;
            EXIT WHEN clock_timestamp() > until;
        END LOOP;
    END IF;
    IF first.claim <= now_here THEN
        visited := 0;
        FOR held IN
            SELECT c.* FROM penstock.claims c
            WHERE c.due_at > since AND c.due_at <= now_here
              AND NOT (passing AND penstock.is_put_off('claim', c.group_id, c.partition_id, c.lo))
            ORDER BY c.due_at
            LIMIT max_rows
            FOR UPDATE SKIP LOCKED
        LOOP
            DELETE FROM penstock.claims c
            WHERE c.group_id = held.group_id AND c.partition_id = held.partition_id AND c.lo = held.lo;
            IF held.lease_id IS NULL THEN
                PERFORM penstock.offer_range(held, held.lo, held.hi, held.attempt, held.first_error, held.last_error);
            ELSE
                PERFORM penstock.expire_range(held);
                PERFORM penstock.free_slots(held.lease_id);
            END IF;
            woken := woken + 1;
            visited := visited + 1;
            ended := clock_timestamp() < until;
            EXIT WHEN NOT ended;
        END LOOP;
        IF visited >= max_rows OR NOT ended THEN
            swept_to := NULL;
        END IF;
    END IF;
    IF first.limited <= now_here OR first.limited_later THEN
        FOR timer IN
            SELECT k.group_id FROM penstock.limited_keys k
            WHERE k.look_at > since AND k.look_at <= now_here
            UNION
            SELECT k.group_id FROM penstock.limited_keys k
            WHERE k.look_at IS NOT NULL AND k.looked_at > now_here + interval '2 seconds'
        LOOP
            CONTINUE WHEN passing AND penstock.is_put_off('limits', timer.group_id, 0, 0);
            SELECT
                sweep_together.woken + l.woken,
                CASE WHEN l.visited < max_rows AND clock_timestamp() < until THEN sweep_together.swept_to END
            INTO woken, swept_to
            FROM penstock.look_at_limits(timer.group_id, max_rows, since) l;
            EXIT WHEN clock_timestamp() > until;
        END LOOP;
    END IF;
    IF first.late_wakeup THEN
        FOR timer IN
            SELECT w.partition_id, w.base_offset FROM penstock.late_wakeups w
            JOIN penstock.partitions p ON p.partition_id = w.partition_id
            WHERE NOT (passing AND penstock.is_put_off('late_wakeup', 0, w.partition_id, w.base_offset))
            LIMIT max_rows
            FOR NO KEY UPDATE OF p SKIP LOCKED
        LOOP
            PERFORM penstock.wake_partitions(ARRAY[timer.partition_id], ARRAY[timer.base_offset]);
            DELETE FROM penstock.late_wakeups w
            WHERE w.partition_id = timer.partition_id AND w.base_offset = timer.base_offset;
            woken := woken + 1;
            EXIT WHEN clock_timestamp() > until;
        END LOOP;
    END IF;
    IF first.enrolling THEN
        FOR timer IN
            SELECT g.group_id FROM penstock.consumer_groups g
            WHERE g.enrolled_to IS NOT NULL AND NOT (passing AND penstock.is_put_off('enrolment', g.group_id, 0, 0))
            ORDER BY g.group_id
        LOOP
            enrolled := enrolled + penstock.enrol_partitions(timer.group_id, max_rows);
        END LOOP;
    END IF;
    next_due := least(first.timer, first.claim, first.scheduled, first.limited);
    IF next_due <= now_here OR woken + enrolled > 0 THEN
        SELECT least(
            (SELECT j.due_at FROM penstock.journal j WHERE j.due_at > now_here AND j.due_at < soon ORDER BY j.due_at LIMIT 1),
            (SELECT c.due_at FROM penstock.claims c WHERE c.due_at > now_here AND c.due_at < soon ORDER BY c.due_at LIMIT 1),
            (
                SELECT k.look_at FROM penstock.limited_keys k WHERE k.look_at > now_here AND k.look_at < soon
                ORDER BY k.look_at LIMIT 1
            ),
            CASE WHEN first.scheduled > now_here THEN first.scheduled END
        ) INTO next_due;
    END IF;
    visited := 0;
    IF first.scheduled <= now_here THEN
        SELECT woken + p.published, least(sweep_together.next_due, p.next_due), CASE WHEN p.complete THEN swept_to END, p.published
        INTO woken, next_due, swept_to, visited
        FROM penstock.publish_scheduled(max_rows, since, soon, passing) p;
    END IF;
    -- A reader with positions of its own may have noted the offset of what was published: that must not be undone. Timers
    -- that were put off come later, and may publish, too.
    IF NOT durable AND visited = 0 AND NOT passing THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;
