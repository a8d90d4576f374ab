-- penstock.note_request(producer, digest)
--
-- Notes what the push of a producer is, before it is pushed in the same transaction; so that another one under the same
-- producer is not taken for it. Waits for a push of the producer that is under way.
--
-- Parameters: producer - what identifies the request, and the producer of its push; digest - a hash of all it says.
-- Returns: whether it is the request that was noted first, or the first one; false for another one.
-- Calls: nothing. Tables: producers (insert, read).
-- Granted to: producer.
CREATE OR REPLACE FUNCTION penstock.note_request(producer uuid, digest bytea)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    IF note_request.producer IS NULL OR note_request.digest IS NULL THEN
        RAISE EXCEPTION 'give a producer and a digest' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Pushes have numbers above 0. A minute longer than the answer of the push: what is forgotten last must be this.
    INSERT INTO penstock.producers (producer, sequence, pushed_at, answer)
    VALUES (note_request.producer, 0, clock_timestamp() + interval '1 minute', to_jsonb(encode(note_request.digest, 'hex')))
    ON CONFLICT (producer, sequence) DO NOTHING;
    -- A new statement, hence a new snapshot: it sees what it has waited for.
    RETURN EXISTS (
        SELECT 1 FROM penstock.producers d
        WHERE d.producer = note_request.producer AND d.sequence = 0
          AND d.answer = to_jsonb(encode(note_request.digest, 'hex'))
    );
END
$$;
