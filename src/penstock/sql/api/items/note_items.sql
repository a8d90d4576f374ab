-- penstock.note_items(group_ids, partition_ids, lease_ids, offsets, progresses, notes, checkpoints)
--
-- Notes how far items are and where a later attempt goes on. What is noted is kept until the item is settled. An item whose
-- lease is not live is not noted.
--
-- Parameters: parallel arrays, an entry per item, each item once; offsets - those of the messages; progresses - in percent;
-- notes - any text; checkpoints - any JSON of at most a million bytes; null in one of these leaves what was noted before.
-- Returns: for each entry, in the order given, whether it was noted.
-- Calls: require_small, require_read_committed, use_lock_timeout, lock_items. Tables: item_notes (insert, update).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.note_items(
    group_ids     integer[],
    partition_ids bigint[],
    lease_ids     uuid[],
    offsets       bigint[],
    progresses    float8[],
    notes         text[],
    checkpoints   json[]
)
RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    held boolean[];
BEGIN
    IF (cardinality(lease_ids) = ALL (ARRAY[
        cardinality(group_ids), cardinality(partition_ids), cardinality(offsets), cardinality(progresses), cardinality(notes),
        cardinality(checkpoints)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'give arrays of one length' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT 1 FROM unnest(progresses) p WHERE p NOT BETWEEN 0 AND 100) THEN
        RAISE EXCEPTION 'a progress must be from 0 to 100 percent' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_small(c.checkpoint::text, 'a checkpoint') FROM unnest(checkpoints) c (checkpoint);
    PERFORM penstock.require_small(n.note, 'a note') FROM unnest(notes) n (note);
    PERFORM penstock.require_read_committed('note');
    PERFORM penstock.use_lock_timeout();
    held := penstock.lock_items(group_ids, partition_ids, lease_ids, offsets);
    INSERT INTO penstock.item_notes AS n (group_id, partition_id, message_offset, progress, note, checkpoint)
    SELECT u.group_id, u.partition_id, u.message_offset, u.progress, u.note, u.checkpoint
    FROM unnest(group_ids, partition_ids, offsets, progresses, notes, checkpoints, held)
        u (group_id, partition_id, message_offset, progress, note, checkpoint, held)
    WHERE u.held
    ORDER BY u.group_id, u.partition_id, u.message_offset
    ON CONFLICT ON CONSTRAINT item_notes_pkey DO UPDATE
    SET progress = coalesce(excluded.progress, n.progress), note = coalesce(excluded.note, n.note),
        checkpoint = coalesce(excluded.checkpoint, n.checkpoint), noted_at = excluded.noted_at;
    RETURN held;
END
$$;
