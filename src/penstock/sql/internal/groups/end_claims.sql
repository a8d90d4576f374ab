-- penstock.end_claims(reader, targets, leases)
--
-- Acknowledges all of each of several claims of one ordered group, as end_claim does for one, in few statements. What is out
-- of the ordinary about any of them is left to ack_claims.
--
-- Parameters: the id of the group; parallel arrays of the ids of partitions and leases.
-- Returns: for each claim, in the order given, whether it was acknowledged; if not, nothing about it has changed.
-- Calls: nothing. Tables: journal (lock, insert, delete), ready (insert), partitions, segments (read).
CREATE OR REPLACE FUNCTION penstock.end_claims(reader integer, targets bigint[], leases uuid[])
RETURNS boolean[]
LANGUAGE plpgsql
AS $$
DECLARE
    positions integer[];
    versions  bigint[];
    acked     boolean[];
    trimming  boolean;
BEGIN
    SELECT array_agg(l.position), array_agg(l.version) INTO positions, versions
    FROM (
        SELECT u.position, j.version
        FROM (
            SELECT u.target, u.position
            FROM unnest(targets) WITH ORDINALITY u (target, position)
            ORDER BY 1 -- as lock_newest does
        ) u
        CROSS JOIN LATERAL (
            SELECT j.version FROM penstock.journal j
            WHERE j.group_id = reader AND j.partition_id = u.target
            ORDER BY j.version DESC
            LIMIT 1
            FOR UPDATE
        ) j
    ) l;
    -- A new statement, hence a new snapshot: whoever held a lock before us may have ended the claim.
    WITH held AS MATERIALIZED (
        SELECT
            u.position, u.target, u.lease, j.version, j.state, j.claimed_to, j.skipped, j.narrow_to, j.due_at, j.lease_id,
            p.priority, s.head_offset, nextval('penstock.ready_seq') AS seq
        FROM (
            SELECT l.position, l.version, targets[l.position] AS target, leases[l.position] AS lease
            FROM unnest(positions, versions) l (position, version)
        ) u
        CROSS JOIN LATERAL (
            SELECT j.* FROM penstock.journal j
            WHERE j.group_id = reader AND j.partition_id = u.target
            ORDER BY j.version DESC
            LIMIT 1
        ) j
        CROSS JOIN LATERAL (
            SELECT s.base_offset + s.count AS head_offset FROM penstock.segments s
            WHERE s.partition_id = u.target
            ORDER BY s.base_offset DESC
            LIMIT 1
        ) s
        CROSS JOIN LATERAL (
            SELECT p.priority FROM penstock.partitions p WHERE p.partition_id = u.target LIMIT 1
        ) p
        WHERE j.version = u.version
    ), appended AS (
        INSERT INTO penstock.journal AS j (
            group_id, partition_id, version, state, committed, claimed_to, skipped, ready_seq, due_at, acked_at
        )
        SELECT
            reader, h.target, h.version + 1, CASE WHEN h.head_offset > h.claimed_to THEN 'r' ELSE 'p' END::"char",
            h.claimed_to, h.claimed_to, h.skipped, CASE WHEN h.head_offset > h.claimed_to THEN h.seq END,
            -- With nothing left the ready list entry would only lead to an empty look: park it at once.
            CASE WHEN h.head_offset <= h.claimed_to THEN clock_timestamp() + interval '50 milliseconds' END,
            clock_timestamp()
        FROM held h
        WHERE h.state = 'c' AND h.lease_id = h.lease AND h.due_at > clock_timestamp()
          AND coalesce(h.narrow_to, 0) <= h.claimed_to
        -- The same partition may have been given twice.
        ON CONFLICT (group_id, partition_id, version) DO NOTHING
        RETURNING j.partition_id, j.ready_seq, j.version
    ), listed AS (
        INSERT INTO penstock.ready (group_id, priority, seq, partition_id)
        SELECT reader, h.priority, a.ready_seq, a.partition_id
        FROM appended a
        JOIN held h ON h.target = a.partition_id AND h.seq = a.ready_seq
    )
    SELECT array_agg(a.partition_id IS NOT NULL ORDER BY n), bool_or(a.version % 32 IN (1, 2)) INTO acked, trimming
    FROM generate_series(1, cardinality(leases)) n
    LEFT JOIN held h ON h.position = n AND h.lease_id = h.lease
    LEFT JOIN appended a ON a.partition_id = h.target;
    IF trimming THEN
        -- As end_claim does it.
        DELETE FROM penstock.journal j
        WHERE j.ctid = ANY (ARRAY(
            SELECT o.ctid
            FROM unnest(targets) u (target)
            CROSS JOIN LATERAL (
                SELECT n.version FROM penstock.journal n
                WHERE n.group_id = reader AND n.partition_id = u.target
                ORDER BY n.version DESC
                LIMIT 1
            ) n
            CROSS JOIN LATERAL (
                SELECT o.ctid FROM penstock.journal o
                WHERE o.group_id = reader AND o.partition_id = u.target
                  AND o.version BETWEEN n.version - 81 AND n.version - 17
                FOR UPDATE SKIP LOCKED
            ) o
            WHERE n.version % 32 IN (1, 2)
        ));
    END IF;
    RETURN acked;
END
$$;
