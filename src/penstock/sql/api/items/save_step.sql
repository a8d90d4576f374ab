-- penstock.save_step(group_id, partition_id, lease_id, message_offset, name, result)
--
-- Remembers that a step of an item is done, and what it returned. The first result stays: whoever saves the step again gets
-- that. It is kept until the item is settled.
--
-- Parameters: the claim and the offset of the message; name - of the step, up to 255 bytes; result - any JSON of at most a
-- million bytes.
-- Returns: the result that is kept; null when the lease is not live.
-- Calls: require_read_committed, use_lock_timeout, require_small, lock_items. Tables: item_notes, item_steps (insert).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.save_step(
    group_id integer, partition_id bigint, lease_id uuid, message_offset bigint, name text, result json
)
RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    IF name IS NULL OR octet_length(name) NOT BETWEEN 1 AND 255 OR result IS NULL THEN
        RAISE EXCEPTION 'a step has a name of 1 to 255 bytes and a result' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_small(save_step.result::text, 'the result of a step');
    PERFORM penstock.require_read_committed('save a step');
    PERFORM penstock.use_lock_timeout();
    IF (penstock.lock_items(
        ARRAY[save_step.group_id], ARRAY[save_step.partition_id], ARRAY[save_step.lease_id], ARRAY[save_step.message_offset]
    ))[1] IS NOT TRUE THEN
        RETURN NULL;
    END IF;
    INSERT INTO penstock.item_notes (group_id, partition_id, message_offset)
    VALUES (save_step.group_id, save_step.partition_id, save_step.message_offset)
    ON CONFLICT ON CONSTRAINT item_notes_pkey DO NOTHING;
    INSERT INTO penstock.item_steps (group_id, partition_id, message_offset, name, result)
    VALUES (save_step.group_id, save_step.partition_id, save_step.message_offset, save_step.name, save_step.result)
    ON CONFLICT ON CONSTRAINT item_steps_pkey DO NOTHING;
    RETURN (
        SELECT s.result FROM penstock.item_steps s
        WHERE s.group_id = save_step.group_id AND s.partition_id = save_step.partition_id
          AND s.message_offset = save_step.message_offset AND s.name = save_step.name
    );
END
$$;
