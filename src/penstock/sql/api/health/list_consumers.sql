-- penstock.list_consumers()
--
-- Lists consumers and how they fare. One that was not seen for 90 seconds is `gone`, whatever it said last.
--
-- Parameters: none.
-- Returns: a row per consumer, the one seen last at the front.
-- Calls: policy_clock. Tables: consumers, consumer_health (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.list_consumers()
RETURNS TABLE (
    consumer_id text, created_at timestamptz, description text, metadata jsonb, last_seen timestamptz, status text,
    success_count bigint, error_count bigint, consecutive_errors bigint, avg_processing_time bigint,
    p99_processing_time bigint, last_error text
)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        c.consumer_id, c.created_at, c.description, c.metadata, h.last_seen,
        -- A time that lies ahead was written before the clock went back.
        CASE
            WHEN h.last_seen IS NULL OR n.at - h.last_seen > interval '90 seconds' THEN 'gone'
            ELSE h.status
        END,
        coalesce(h.success_count, 0), coalesce(h.error_count, 0), coalesce(h.consecutive_errors, 0),
        h.avg_processing_time, h.p99_processing_time, h.last_error
    FROM penstock.consumers c
    LEFT JOIN penstock.consumer_health h ON h.consumer_id = c.consumer_id
    CROSS JOIN (SELECT penstock.policy_clock() AS at) n
    ORDER BY h.last_seen DESC NULLS LAST, c.consumer_id
$$;
