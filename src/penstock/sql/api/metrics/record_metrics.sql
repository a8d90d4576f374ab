-- penstock.record_metrics(queue_names, metric_names, metric_values, labels)
--
-- Appends values to the series of queues, all at one time. Clients call it once a minute or so, with what they have
-- counted. Queues that do not exist are left out. It need not survive a crash of the server, so it does not wait for
-- the disk.
--
-- Parameters: parallel arrays; a name of a metric is a word of small letters, digits and _; labels - a JSON object, or
-- null.
-- Returns: the number of values stored.
-- Calls: policy_clock. Tables: queues (read), queue_metrics (insert).
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.record_metrics(
    queue_names text[], metric_names text[], metric_values bigint[], labels jsonb[]
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    stored bigint;
BEGIN
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(metric_names), cardinality(metric_values), cardinality(labels)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'queue_names, metric_names, metric_values and labels must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (
        SELECT 1 FROM unnest(metric_names, metric_values, labels) u (name, value, label)
        WHERE u.name !~ '^[a-z][a-z0-9_]{0,62}$' OR u.name IS NULL OR u.value IS NULL
           OR jsonb_typeof(u.label) <> 'object' OR octet_length(u.label::text) > 1000
    ) THEN
        RAISE EXCEPTION 'a metric has a name of small letters, digits and _, a value, and as labels a JSON object of at most 1000 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO penstock.queue_metrics (queue_name, metric_name, metric_value, "timestamp", labels)
    SELECT q.name, u.name, u.value, n.at, nullif(u.label, '{}')
    FROM unnest(queue_names, metric_names, metric_values, record_metrics.labels) WITH ORDINALITY
        u (queue, name, value, label, nth)
    JOIN penstock.queues q ON q.name = u.queue
    CROSS JOIN (SELECT penstock.policy_clock() AS at) n
    ORDER BY u.nth;
    GET DIAGNOSTICS stored = ROW_COUNT;
    RETURN stored;
END
$$;
