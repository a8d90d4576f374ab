-- penstock.reset_consumer(consumer)
--
-- Resets a consumer: it counts from 0 again, and if its own circuit breaker is open, it closes with the consumer's next
-- report. One that is gone is deleted.
--
-- Parameters: consumer - its id.
-- Returns: whether it was deleted; raises undefined_object if there is no such consumer.
-- Calls: policy_clock. Tables: consumers (delete), consumer_health (read, update).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.reset_consumer(consumer text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM penstock.consumers c
    WHERE c.consumer_id = consumer AND NOT EXISTS (
        SELECT 1 FROM penstock.consumer_health h
        WHERE h.consumer_id = c.consumer_id AND h.status <> 'gone'
          AND penstock.policy_clock() - h.last_seen <= interval '90 seconds'
    );
    IF FOUND THEN
        RETURN true;
    END IF;
    UPDATE penstock.consumer_health h
    SET is_reset = true, status = 'healthy', success_count = 0, error_count = 0, consecutive_errors = 0,
        avg_processing_time = NULL, p99_processing_time = NULL, last_error = NULL
    WHERE h.consumer_id = consumer;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no consumer "%"', consumer
            USING ERRCODE = 'undefined_object', HINT = '"penstock consumers" lists those there are.';
    END IF;
    RETURN false;
END
$$;
