-- penstock.copy_letters(stage, partition_ids, offsets, payloads, keys, headers, times)
--
-- Stores copies of messages that are to become dead letters and are only in the archive.
--
-- Parameters: stage - its id; the others - the messages, as parallel arrays; headers as JSON.
-- Returns: the number of copies; raises insufficient_privilege if the stage belongs to another user.
-- Calls: require_own_writer. Tables: stages (read), staged_dead_letters (update).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.copy_letters(
    stage bigint, partition_ids bigint[], offsets bigint[], payloads bytea[], keys text[], headers text[],
    times timestamptz[]
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    copied bigint;
BEGIN
    IF (cardinality(partition_ids) = ALL (ARRAY[
        cardinality(offsets), cardinality(payloads), cardinality(keys), cardinality(headers), cardinality(times)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'partition_ids, offsets, payloads, keys, headers and times must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM penstock.require_own_writer((SELECT s.writer FROM penstock.stages s WHERE s.stage_id = stage));
    UPDATE penstock.staged_dead_letters d
    SET payload = m.payload, key = m.key, headers = m.headers::jsonb, created_at = m.created_at
    FROM unnest(partition_ids, offsets, payloads, keys, copy_letters.headers, times)
        m (partition_id, message_offset, payload, key, headers, created_at)
    WHERE d.stage_id = stage AND d.partition_id = m.partition_id AND d.message_offset = m.message_offset;
    GET DIAGNOSTICS copied = ROW_COUNT;
    RETURN copied;
END
$$;
