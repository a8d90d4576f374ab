-- penstock.append_numbered(targets, counts, bodies, ends, keys, key_ends, headers, header_ends)
--
-- Does what append_segments does, for callers of every isolation level. Above READ COMMITTED there is no new snapshot
-- after the locks are taken; an offset that was taken meanwhile is a duplicate key. If the segment with that key was
-- merged or dropped since, so was the newest segment of our snapshot, and locking it fails; if our snapshot has none
-- at all, the partition is in `trimmed`, and the duplicate key is there.
--
-- Parameters: those of append_segments.
-- Returns: as append_segments; raises serialization_failure if somebody pushed after the snapshot.
-- Calls: append_segments. Tables: segments (lock), trimmed (insert, delete).
CREATE OR REPLACE FUNCTION penstock.append_numbered(
    targets     bigint[],
    counts      integer[],
    bodies      bytea[],
    ends        bytea[],
    keys        bytea[],
    key_ends    bytea[],
    headers     bytea[],
    header_ends bytea[]
)
RETURNS TABLE (partition_id bigint, first_offset bigint, message_count integer, created_at timestamptz)
LANGUAGE plpgsql
AS $$
BEGIN
    IF current_setting('transaction_isolation') = 'read committed' THEN
        RETURN QUERY SELECT * FROM penstock.append_segments(
            targets, counts, bodies, ends, keys, key_ends, headers, header_ends
        );
        RETURN;
    END IF;
    PERFORM 1 FROM penstock.segments s
    WHERE (s.partition_id, s.base_offset) IN (
        SELECT t.id, (SELECT max(g.base_offset) FROM penstock.segments g WHERE g.partition_id = t.id)
        FROM unnest(targets) t (id)
    )
    FOR SHARE;
    BEGIN
        WITH empty AS (
            SELECT DISTINCT t.id FROM unnest(targets) t (id)
            WHERE NOT EXISTS (SELECT 1 FROM penstock.segments g WHERE g.partition_id = t.id)
        )
        INSERT INTO penstock.trimmed (partition_id) SELECT e.id FROM empty e;
        DELETE FROM penstock.trimmed m
        WHERE m.partition_id = ANY (targets)
          AND NOT EXISTS (SELECT 1 FROM penstock.segments g WHERE g.partition_id = m.partition_id);
        RETURN QUERY SELECT * FROM penstock.append_segments(
            targets, counts, bodies, ends, keys, key_ends, headers, header_ends
        );
    EXCEPTION WHEN unique_violation THEN
        RAISE EXCEPTION 'a partition was pushed to after this transaction took its snapshot'
            USING ERRCODE = 'serialization_failure',
                  HINT = 'Retry the whole transaction, or push under READ COMMITTED.';
    END;
END
$$;
