-- penstock.claim_limited(entry, start_offset, stop_offset, settings, lease, until, consumer)
--
-- Claims what limits by key allow of a range of a shared group. The others wait, each run of them by itself, so that a key at
-- its limit holds up no other one. The claim is one, with one lease, and has a row for each run.
--
-- Parameters: entry - the ready list entry, which the caller has deleted; the range, which is the caller's to claim;
-- settings - the group's; lease, until and consumer - of the claim, a null lease for one that is done at once.
-- Returns: where the claim begins and ends, with each slice of its messages.
-- Calls: pass_limits, await_key, free_slots, segment_slices. Tables: claims, skips (insert).
CREATE OR REPLACE FUNCTION penstock.claim_limited(
    entry penstock.ready, start_offset bigint, stop_offset bigint, settings jsonb, lease uuid, until timestamptz, consumer text
)
RETURNS TABLE (
    claimed_from bigint, claimed_to bigint,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_variable
DECLARE
    passed  record;
    los     bigint[] := '{}';
    his     bigint[] := '{}';
    since   timestamptz;
    several boolean;
    given   boolean := false;
BEGIN
    FOR passed IN
        SELECT p.* FROM penstock.pass_limits(
            entry.group_id, entry.partition_id, start_offset, stop_offset, settings, true, lease
        ) p
    LOOP
        IF passed.blocked IS NULL THEN
            los := los || passed.lo;
            his := his || passed.hi;
            CONTINUE;
        END IF;
        since := clock_timestamp();
        INSERT INTO penstock.claims (
            group_id, partition_id, lo, hi, attempt, due_at, claimed_at, first_error, last_error
        ) VALUES (
            entry.group_id, entry.partition_id, passed.lo, passed.hi, entry.attempt,
            -- Whoever waits for a key is woken long before; this is for what nobody has thought of.
            since + CASE passed.blocked WHEN 'b' THEN interval '50 milliseconds' ELSE interval '10 minutes' END,
            since, entry.first_error, entry.last_error
        );
        IF passed.blocked IN ('r', 'c') THEN
            PERFORM penstock.await_key(
                entry.group_id, passed.blocked, passed.key, entry.partition_id, NULL, passed.lo, since
            );
        END IF;
    END LOOP;
    several := cardinality(los) > 1;
    FOR i IN 1 .. cardinality(los) LOOP
        RETURN QUERY
        SELECT los[1], his[cardinality(his)], s.* FROM penstock.segment_slices(entry.partition_id, los[i], his[i]) s;
        IF NOT FOUND THEN
            -- A purge has committed since we looked where the floor is.
            INSERT INTO penstock.skips (group_id, partition_id, lo, hi)
            VALUES (entry.group_id, entry.partition_id, los[i], his[i])
            ON CONFLICT DO NOTHING;
            CONTINUE;
        END IF;
        given := true;
        IF lease IS NOT NULL THEN
            INSERT INTO penstock.claims (
                group_id, partition_id, lo, hi, attempt, lease_id, due_at, consumer, first_error, last_error, alone, whole,
                ahead
            ) VALUES (
                entry.group_id, entry.partition_id, los[i], his[i], entry.attempt + 1, lease, until, consumer,
                entry.first_error, entry.last_error, NOT several AND his[i] - los[i] = 1, NOT several,
                settings ? 'ahead'
            );
        END IF;
    END LOOP;
    IF lease IS NOT NULL AND NOT given THEN
        PERFORM penstock.free_slots(lease);
    END IF;
END
$$;
