-- penstock.run_rules(max_rows)
--
-- Redrives the dead letters that are due by a rule. Maintenance and consumers call it every few seconds. A call looks at
-- `max_rows` matching dead letters of each rule, and the next one goes on where it ended, so a call costs no more where
-- there are very many. It skips rules that another caller is at. If nothing is due it writes nothing.
--
-- Parameters: max_rows - the largest number of dead letters of each rule.
-- Returns: how many were redriven.
-- Calls: match_dead_letters, redrive, policy_clock. Tables: dead_letter_rules (lock, update).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.run_rules(max_rows integer DEFAULT 1000)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    rule    record;
    found   record;
    place   record;
    done    bigint;
    next_at bigint;
    total   bigint := 0;
BEGIN
    IF (max_rows > 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'max_rows is % and must be above 0', max_rows USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR rule IN
        SELECT r.* FROM penstock.dead_letter_rules r WHERE r.enabled ORDER BY r.rule_id FOR UPDATE SKIP LOCKED
    LOOP
        SELECT
            coalesce(sum(m.letters), 0) AS seen, max(m.dead_letter_id) AS last,
            coalesce(jsonb_object_agg(m.queue, m.ids) FILTER (WHERE m.verdict = 'redrive'), '{}') AS by_queue
        INTO found
        FROM (
            SELECT
                m.queue, m.verdict, max(m.dead_letter_id) AS dead_letter_id, jsonb_agg(m.dead_letter_id) AS ids,
                count(*) AS letters
            FROM penstock.match_dead_letters(
                rule.queue_name, rule.group_name, rule.reason, rule.error_text, rule.backoff, rule.backoff_factor,
                rule.max_redrives, rule.looked_to, max_rows
            ) m
            GROUP BY m.queue, m.verdict
        ) m;
        done := 0;
        FOR place IN
            SELECT q.key AS queue, ARRAY(SELECT jsonb_array_elements_text(q.value)::bigint) AS ids
            FROM jsonb_each(found.by_queue) q
            ORDER BY q.key
        LOOP
            done := done + penstock.redrive(place.queue, NULL, NULL, place.ids, max_rows, true);
        END LOOP;
        -- After the last one it begins again at the first.
        next_at := CASE WHEN found.seen >= max_rows THEN found.last ELSE 0 END;
        IF done > 0 OR rule.looked_to <> next_at THEN
            UPDATE penstock.dead_letter_rules r
            SET looked_to = next_at, redriven = r.redriven + done,
                last_redriven = CASE WHEN done > 0 THEN penstock.policy_clock() ELSE r.last_redriven END
            WHERE r.rule_id = rule.rule_id;
        END IF;
        total := total + done;
    END LOOP;
    RETURN total;
END
$$;
