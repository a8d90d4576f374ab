-- penstock.ensure_consumer_exists(consumer, description, metadata)
--
-- Creates the row of a consumer, if there is none. report_health calls it, so nobody else has to.
--
-- Parameters: consumer - its id, 1 to 255 bytes; description and metadata - null keeps what is there.
-- Returns: whether it was created.
-- Calls: nothing. Tables: consumers (insert, update).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.ensure_consumer_exists(
    consumer text, description text DEFAULT NULL, metadata jsonb DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    created boolean;
BEGIN
    IF consumer IS NULL OR octet_length(consumer) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the id of a consumer is % but must have 1 to 255 bytes', coalesce(to_json(left(consumer, 50))::text, 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(ensure_consumer_exists.description) > 10000 OR octet_length(ensure_consumer_exists.metadata::text) > 100000 THEN
        RAISE EXCEPTION 'the description of a consumer has at most 10000 bytes, and its metadata 100000'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO penstock.consumers (consumer_id, description, metadata)
    VALUES (consumer, ensure_consumer_exists.description, ensure_consumer_exists.metadata)
    ON CONFLICT (consumer_id) DO NOTHING;
    created := FOUND;
    IF NOT created THEN
        UPDATE penstock.consumers c
        SET description = coalesce(ensure_consumer_exists.description, c.description),
            metadata = coalesce(ensure_consumer_exists.metadata, c.metadata)
        WHERE c.consumer_id = consumer
          AND (coalesce(ensure_consumer_exists.description, c.description),
               coalesce(ensure_consumer_exists.metadata, c.metadata))
              IS DISTINCT FROM (c.description, c.metadata);
    END IF;
    RETURN created;
END
$$;
