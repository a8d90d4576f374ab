-- penstock.claim_named(reader, queue, wanted, mode, priorities, settings, …)
--
-- Claims a partition by name, if it is in the ready list; pop_claims calls it for a pop that names a partition.
--
-- Parameters: the group, the queue, the partition's name, the group's mode, the queue's priorities, then those of
-- pop_claims.
-- Returns: the rows of pop_claims.
-- Calls: claim_partition, claim_range, newest_state. Tables: partitions (read), ready (delete).
CREATE OR REPLACE FUNCTION penstock.claim_named(
    reader       integer,
    queue        integer,
    wanted       text,
    mode         text,
    priorities   smallint[],
    settings     jsonb,
    max_messages integer,
    max_bytes    bigint,
    lease_time   float8,
    consumer     text,
    auto_ack     boolean
)
RETURNS TABLE (
    group_id integer, partition_id bigint, partition_name text, lease_id uuid, lease_until timestamptz,
    attempt smallint, claimed_from bigint, claimed_to bigint, level integer, seq bigint, shared boolean,
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
    target bigint := (SELECT p.partition_id FROM penstock.partitions p WHERE p.queue_id = queue AND p.name = wanted);
    seq_of bigint;
    entry  penstock.ready;
BEGIN
    -- Level 0: an entry taken out of order says nothing about those before it.
    WHILE mode = 'shared' LOOP
        -- Ranges that came back first, then the frontier.
        DELETE FROM penstock.ready y
        WHERE y.ctid = (
            SELECT y.ctid FROM penstock.ready y
            WHERE y.group_id = reader AND y.partition_id = target AND y.lo IS NOT NULL
            ORDER BY y.lo
            LIMIT 1
            FOR UPDATE SKIP LOCKED
        )
        RETURNING y.* INTO entry;
        EXIT WHEN NOT FOUND;
        RETURN QUERY SELECT * FROM penstock.claim_range(
            entry, 0, settings, max_messages, max_bytes, lease_time, consumer, auto_ack
        );
        IF FOUND THEN
            RETURN; -- else retention has dropped the range
        END IF;
    END LOOP;
    SELECT j.ready_seq INTO seq_of
    FROM (
        SELECT j.state, j.ready_seq FROM penstock.newest_state(reader, target) j
    ) j
    WHERE j.state = 'r';
    DELETE FROM penstock.ready y
    WHERE y.ctid = (
        -- Level by level: for a list of them PostgreSQL 15 may read the whole ready list.
        SELECT y.ctid
        FROM unnest(priorities) l (level)
        CROSS JOIN LATERAL (
            SELECT y.ctid FROM penstock.ready y
            WHERE y.group_id = reader AND y.priority = l.level AND y.seq = seq_of
            LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) y
    )
    RETURNING y.* INTO entry;
    IF entry.seq IS NULL THEN
        RETURN;
    END IF;
    IF mode = 'ordered' THEN
        RETURN QUERY SELECT * FROM penstock.claim_partition(
            reader, target, wanted, 0, entry.seq, settings, max_messages, max_bytes, lease_time, consumer, auto_ack
        );
    ELSE
        RETURN QUERY SELECT * FROM penstock.claim_range(
            entry, 0, settings, max_messages, max_bytes, lease_time, consumer, auto_ack
        );
    END IF;
END
$$;
