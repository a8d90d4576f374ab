-- penstock.require_unique(queue_names, counts, unique_keys, unique_for, unique_until)
--
-- Raises an error if the unique keys of a push cannot be, or do not say for how long they count.
--
-- Parameters: those of push_unique_segments.
-- Returns: nothing; raises invalid_parameter_value.
-- Calls: require_read_committed. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_unique(
    queue_names text[], counts integer[], unique_keys text[], unique_for float8[], unique_until text[]
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    problem text;
BEGIN
    SELECT u.problem INTO problem
    FROM (
        SELECT CASE
            WHEN octet_length(w.unique_key) NOT BETWEEN 1 AND 255 THEN
                format('a unique key must have 1 to 255 bytes and this one has %s', octet_length(w.unique_key))
            WHEN w.count <> 1 THEN 'a unique key belongs to one message: give it a segment of its own'
            WHEN num_nonnulls(w.seconds, w.until) = 0 THEN
                'a unique key needs unique_for or unique_until: say for how long it counts'
            WHEN NOT (w.seconds > 0 AND w.seconds <= 3155760000) THEN
                format('unique_for is %s but must be above 0 and at most 3155760000 seconds', w.seconds)
            WHEN w.until NOT IN ('taken', 'done') THEN
                format('unique_until is %s but must be "taken" or "done"', to_json(w.until))
            WHEN count(*) OVER (PARTITION BY w.queue_name, w.unique_key) > 1 THEN
                format('the unique key %s is given twice in one push', to_json(w.unique_key))
        END AS problem
        FROM unnest(queue_names, counts, unique_keys, unique_for, unique_until)
            w (queue_name, count, unique_key, seconds, until)
        WHERE w.unique_key IS NOT NULL
    ) u
    WHERE u.problem IS NOT NULL
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF num_nonnulls(VARIADIC unique_until) > 0 THEN
        -- An old snapshot shows an old state of the groups.
        PERFORM penstock.require_read_committed('push with unique_until');
    END IF;
END
$$;
