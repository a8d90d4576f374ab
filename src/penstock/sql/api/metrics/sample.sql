-- penstock.sample(max_entries, min_age)
--
-- Takes a step of a sample: how many messages wait in each group, how many of them were not handed out, and which is
-- the oldest. Positions are subtracted, so the cost does not depend on how many messages there are. It depends on how
-- many partitions have some: a step visits `max_entries` of them, and the next step goes on where it ended. The sample
-- counts when it is complete; group_samples and list_work have it then. Idle partitions are not visited.
--
-- Maintenance and consumers call it every few seconds, in the background (min_age above 0). Then a step is followed by a
-- pause of nine times its length, whoever calls: it uses a tenth of a core at most. One works at a time; the others get no row. If nothing has
-- changed it writes nothing.
--
-- Parameters: max_entries - the largest number of partitions and ranges to visit; min_age - begin a new sample only if
-- the last one is so many seconds old, and leave pauses between steps.
-- Returns: how many entries it visited, and whether the sample is complete. No row while another one samples.
-- Calls: policy_clock, newest_state, sample_positions, finish_sample. Tables: sample_lock (lock), sampling (read,
-- insert, update, delete), group_samples, ready, journal, claims (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.sample(max_entries integer DEFAULT 2000, min_age float8 DEFAULT 0)
RETURNS TABLE (visited integer, complete boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    now_at timestamptz := penstock.policy_clock();
    began  timestamptz := clock_timestamp();
    place  penstock.sampling;
    is_new boolean;
    piece  record;
    until  timestamptz;
BEGIN
    IF (max_entries > 0 AND min_age >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'max_entries is % and must be above 0; min_age is % and must not be negative', max_entries, min_age
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    BEGIN
        LOCK TABLE penstock.sample_lock IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN;
    END;
    PERFORM set_config('synchronous_commit', 'off', true);
    visited := 0;
    complete := true;
    SELECT s.* INTO place FROM penstock.sampling s;
    is_new := NOT FOUND;
    IF is_new THEN
        -- One that was written after now was written before the clock went back.
        IF EXISTS (
            SELECT 1 FROM penstock.group_samples g
            WHERE g.sampled_at BETWEEN now_at - make_interval(secs => min_age) AND now_at AND min_age > 0
        ) THEN
            RETURN NEXT;
            RETURN;
        END IF;
        -- What gets ready from now on has a higher number: partitions that take turns are not counted twice.
        place := ROW(
            true, 'r', now_at, (SELECT q.last_value FROM penstock.ready_seq q), 0, 32767, 0, '-infinity', now_at
        );
        place.at_priority := -32768;
    ELSIF min_age > 0 AND place.next_at BETWEEN now_at AND now_at + interval '1 minute' THEN
        complete := false;
        RETURN NEXT;
        RETURN;
    END IF;
    IF place.phase = 'r' THEN
        SELECT
            count(*) AS entries, array_agg(y.group_id) AS groups, array_agg(y.partition_id) AS partitions,
            array_agg(y.committed) AS committed, array_agg(y.claimed_to) AS claimed, array_agg(y.hi) AS stops,
            array_agg('r'::"char") AS states, (array_agg(y.priority ORDER BY y.nth DESC))[1] AS priority,
            (array_agg(y.seq ORDER BY y.nth DESC))[1] AS seq, (array_agg(y.group_id ORDER BY y.nth DESC))[1] AS at_group
        INTO piece
        FROM (
            SELECT
                y.group_id, y.partition_id, coalesce(y.lo, j.committed, 0) AS committed,
                coalesce(y.lo, j.claimed_to, 0) AS claimed_to, y.hi, y.priority, y.seq,
                row_number() OVER () AS nth
            FROM (
                SELECT y.*
                FROM penstock.ready y
                WHERE (y.group_id, y.priority, y.seq) > (place.at_group, place.at_priority, place.at_seq)
                  AND y.seq <= place.last_seq
                ORDER BY y.group_id, y.priority, y.seq
                LIMIT max_entries
            ) y
            LEFT JOIN LATERAL penstock.newest_state(y.group_id, y.partition_id) j ON y.lo IS NULL
        ) y;
        visited := piece.entries;
        IF piece.entries > 0 THEN
            PERFORM penstock.sample_positions(
                piece.groups, piece.partitions, piece.states, piece.committed, piece.claimed, piece.stops
            );
        END IF;
        IF piece.entries < max_entries THEN
            place.phase := 'j';
            place.at_due := '-infinity';
        ELSE
            place.at_group := piece.at_group;
            place.at_priority := piece.priority;
            place.at_seq := piece.seq;
        END IF;
    END IF;
    IF place.phase = 'j' AND visited < max_entries THEN
        -- Several may be due at the same time: all of them belong to one step.
        until := coalesce((
            SELECT j.due_at FROM penstock.journal j
            WHERE j.due_at > place.at_due
            ORDER BY j.due_at
            OFFSET max_entries - visited - 1
            LIMIT 1
        ), 'infinity');
        SELECT
            count(*) AS entries, array_agg(j.group_id) AS groups, array_agg(j.partition_id) AS partitions,
            array_agg(j.committed) AS committed, array_agg(j.claimed_to) AS claimed, array_agg(NULL::bigint) AS stops,
            array_agg(CASE j.state WHEN 'c' THEN 'c'::"char" ELSE 't'::"char" END) AS states
        INTO piece
        FROM (
            SELECT j.group_id, j.partition_id, j.state, j.committed, j.claimed_to
            FROM penstock.journal j
            CROSS JOIN LATERAL penstock.newest_state(j.group_id, j.partition_id) n
            WHERE j.due_at > place.at_due AND j.due_at <= until AND n.version = j.version AND j.state <> 'p'
        ) j;
        visited := visited + piece.entries;
        IF piece.entries > 0 THEN
            PERFORM penstock.sample_positions(
                piece.groups, piece.partitions, piece.states, piece.committed, piece.claimed, piece.stops
            );
        END IF;
        place.at_due := until;
        IF until = 'infinity' THEN
            place.phase := 'c';
            place.at_due := '-infinity';
        END IF;
    END IF;
    IF place.phase = 'c' AND visited < max_entries THEN
        until := coalesce((
            SELECT c.due_at FROM penstock.claims c
            WHERE c.due_at > place.at_due
            ORDER BY c.due_at
            OFFSET max_entries - visited - 1
            LIMIT 1
        ), 'infinity');
        SELECT
            count(*) AS entries, array_agg(c.group_id) AS groups, array_agg(c.partition_id) AS partitions,
            array_agg(c.lo) AS committed, array_agg(c.hi) AS claimed, array_agg(c.hi) AS stops,
            array_agg(CASE WHEN c.lease_id IS NULL THEN 't'::"char" ELSE 'c'::"char" END) AS states
        INTO piece
        FROM penstock.claims c
        WHERE c.due_at > place.at_due AND c.due_at <= until;
        visited := visited + piece.entries;
        IF piece.entries > 0 THEN
            PERFORM penstock.sample_positions(
                piece.groups, piece.partitions, piece.states, piece.committed, piece.claimed, piece.stops
            );
        END IF;
        place.at_due := until;
        IF until = 'infinity' THEN
            place.phase := 'e';
        END IF;
    END IF;
    complete := place.phase = 'e';
    IF complete THEN
        PERFORM penstock.finish_sample(now_at);
        DELETE FROM penstock.sampling s;
    ELSE
        place.next_at := now_at + 9 * (clock_timestamp() - began);
        INSERT INTO penstock.sampling AS s VALUES (place.*)
        ON CONFLICT (one) DO UPDATE SET
            phase = excluded.phase, at_group = excluded.at_group, at_priority = excluded.at_priority,
            at_seq = excluded.at_seq, at_due = excluded.at_due,
            next_at = excluded.next_at;
    END IF;
    RETURN NEXT;
END
$$;
