-- penstock.trim_metrics(max_rows)
--
-- Deletes values that are older than their queue's setting metrics_retention, some of each queue; and rollups by
-- minute after 30 days, and by hour after a year.
--
-- Parameters: max_rows - the largest number of rows of one queue.
-- Returns: how many.
-- Calls: policy_clock. Tables: queues (read), queue_metrics, queue_rollups
-- (delete).
CREATE OR REPLACE FUNCTION penstock.trim_metrics(max_rows integer)
RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    queue   record;
    deleted bigint := 0;
    went    bigint;
BEGIN
    FOR queue IN
        SELECT q.name, penstock.policy_clock() - make_interval(
            secs => coalesce((q.settings ->> 'metrics_retention')::float8, 604800)
        ) AS before
        FROM penstock.queues q
    LOOP
        DELETE FROM penstock.queue_metrics m
        WHERE m.ctid = ANY (ARRAY(
            SELECT o.ctid FROM penstock.queue_metrics o
            WHERE o.queue_name = queue.name AND o."timestamp" < queue.before
            LIMIT max_rows
        ));
        GET DIAGNOSTICS went = ROW_COUNT;
        deleted := deleted + went;
        DELETE FROM penstock.queue_rollups r
        WHERE r.queue_name = queue.name
          AND (r.resolution = 'minute' AND r.bucket < penstock.policy_clock() - interval '30 days'
               OR r.resolution = 'hour' AND r.bucket < penstock.policy_clock() - interval '1 year');
    END LOOP;
    RETURN deleted;
END
$$;
