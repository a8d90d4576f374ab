-- penstock.report_health(consumer, report_number, status, success_count, error_count, consecutive_errors,
--                        avg_processing_time, p99_processing_time, last_error, description, metadata, queue_names,
--                        group_names, successes, errors, trailing_errors, last_errors)
--
-- Records how a consumer fares, and judges the groups that it consumes for: their circuit breakers open and close here.
-- A consumer calls it every few seconds while it handles messages, and every half minute while it does not. It need not
-- survive a crash of the server, so it does not wait for the disk.
--
-- Parameters: consumer - its id; report_number - counts the reports of this consumer, so that a repeated one changes
-- nothing; status - healthy, degraded, open, half_open, or gone if it ends; success_count to last_error - of all that it
-- has handled, times in microseconds; description, metadata - of the consumer, null to keep them; the arrays - for each
-- group the messages that succeeded and failed since the last report, the errors since the last success, and the last
-- error. Groups that do not exist are left out.
-- Returns: a row per group: the state of its breaker, how many seconds it is still held, the breaker's settings, and
-- whether an operator has reset the consumer since its last report: it closes its own breakers and counts from 0.
-- Calls: ensure_consumer_exists, policy_clock, judge_group, breaker_settings. Tables: consumer_health,
-- group_consumers (insert, update), queues, consumer_groups, breakers (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.report_health(
    consumer text, report_number bigint, status text, success_count bigint, error_count bigint,
    consecutive_errors bigint, avg_processing_time bigint, p99_processing_time bigint, last_error text,
    description text DEFAULT NULL, metadata jsonb DEFAULT NULL, queue_names text[] DEFAULT '{}',
    group_names text[] DEFAULT '{}', successes bigint[] DEFAULT '{}', errors bigint[] DEFAULT '{}',
    trailing_errors bigint[] DEFAULT '{}', last_errors text[] DEFAULT '{}'
)
RETURNS TABLE (
    queue_name text, group_name text, state text, held_for float8, max_errors bigint, max_rate float8,
    window_seconds float8, pause float8, pause_max float8, reset boolean
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    now_at timestamptz := penstock.policy_clock();
    entry   record;
    is_new boolean;
    again  boolean;
BEGIN
    IF (cardinality(queue_names) = ALL (ARRAY[
        cardinality(group_names), cardinality(successes), cardinality(errors), cardinality(trailing_errors),
        cardinality(last_errors)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'queue_names, group_names, successes, errors, trailing_errors and last_errors must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (report_health.report_number > 0 AND report_health.success_count >= 0 AND report_health.error_count >= 0
        AND report_health.consecutive_errors >= 0 AND 0 <= ALL (successes || errors || trailing_errors)) IS NOT TRUE
    THEN
        RAISE EXCEPTION 'report_number must be above 0, and no count may be null or negative'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (report_health.status IN ('healthy', 'degraded', 'open', 'half_open', 'gone')) IS NOT TRUE THEN
        RAISE EXCEPTION 'status is % but must be one of healthy, degraded, open, half_open, gone', report_health.status
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM penstock.ensure_consumer_exists(consumer, report_health.description, report_health.metadata);
    again := coalesce((SELECT h.is_reset FROM penstock.consumer_health h WHERE h.consumer_id = consumer), false);
    INSERT INTO penstock.consumer_health AS h (
        consumer_id, last_seen, status, success_count, error_count, consecutive_errors, avg_processing_time,
        p99_processing_time, last_error, report_number
    ) VALUES (
        consumer, now_at, report_health.status, report_health.success_count, report_health.error_count,
        report_health.consecutive_errors, report_health.avg_processing_time, report_health.p99_processing_time,
        left(report_health.last_error, 2000), report_health.report_number
    )
    ON CONFLICT (consumer_id) DO UPDATE SET
        last_seen = excluded.last_seen, status = excluded.status, success_count = excluded.success_count,
        error_count = excluded.error_count, consecutive_errors = excluded.consecutive_errors,
        avg_processing_time = excluded.avg_processing_time, p99_processing_time = excluded.p99_processing_time,
        last_error = coalesce(excluded.last_error, h.last_error), report_number = excluded.report_number,
        is_reset = false
    WHERE h.report_number < excluded.report_number;
    is_new := FOUND;
    -- In the order of ids: two reports that lock the same breakers must not wait for each other.
    FOR entry IN
        SELECT q.name AS queue, g.name AS consumer_group, g.group_id, u.good, u.bad, u.in_a_row, u.error
        FROM unnest(queue_names, group_names, successes, errors, trailing_errors, last_errors)
            u (queue, consumer_group, good, bad, in_a_row, error)
        JOIN penstock.queues q ON q.name = u.queue
        JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id AND g.name = u.consumer_group
        ORDER BY g.group_id
    LOOP
        IF is_new THEN
            INSERT INTO penstock.group_consumers AS c (group_id, consumer_id, consecutive_errors)
            VALUES (entry.group_id, consumer, entry.in_a_row)
            ON CONFLICT (group_id, consumer_id) DO UPDATE SET consecutive_errors = excluded.consecutive_errors
            WHERE c.consecutive_errors <> excluded.consecutive_errors;
            PERFORM penstock.judge_group(entry.group_id, consumer, entry.good, entry.bad, entry.in_a_row, entry.error);
        END IF;
        RETURN QUERY
        SELECT
            entry.queue, entry.consumer_group,
            CASE WHEN b.state = 'open' THEN CASE WHEN now_at < b.open_until THEN 'open' ELSE 'half_open' END
                ELSE 'closed' END,
            CASE WHEN b.state = 'open' THEN greatest(extract(epoch FROM b.open_until - now_at), 0)::float8 END,
            s.errors, s.rate, s.window_seconds, s.pause, s.pause_max, again
        FROM penstock.breaker_settings(entry.group_id) s
        LEFT JOIN penstock.breakers b ON b.group_id = entry.group_id;
    END LOOP;
END
$$;
