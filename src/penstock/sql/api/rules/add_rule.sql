-- penstock.add_rule(rule_name, queue_name, group_name, wanted_reason, error_text, backoff, backoff_factor,
--                   max_redrives)
--
-- Adds a rule: dead letters that match it are redriven by themselves, those that there are and those that come.
--
-- Parameters: rule_name; queue_name, group_name, wanted_reason, error_text - as in match_dead_letters; backoff - the
-- seconds from a message's death to its first redrive; backoff_factor - by how much each further wait is longer;
-- max_redrives - how often a message is redriven at most. What was redriven so often and died again stays a dead letter.
-- Returns: the rule's id; raises duplicate_object if there is a rule of that name.
-- Calls: require_names. Tables: dead_letter_rules (insert).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.add_rule(
    rule_name text, queue_name text DEFAULT NULL, group_name text DEFAULT NULL, wanted_reason text DEFAULT NULL,
    error_text text DEFAULT NULL, backoff float8 DEFAULT 60, backoff_factor float8 DEFAULT 2,
    max_redrives integer DEFAULT 3
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made bigint;
BEGIN
    PERFORM penstock.require_names(rule_name);
    IF (backoff BETWEEN 0 AND 31536000 AND backoff_factor BETWEEN 1 AND 100 AND max_redrives BETWEEN 1 AND 1000)
        IS NOT TRUE
    THEN
        RAISE EXCEPTION 'backoff is % s and must be from 0 to 31536000, backoff_factor is % and must be from 1 to 100, max_redrives is % and must be from 1 to 1000',
            backoff, backoff_factor, max_redrives
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF error_text = '' OR wanted_reason = '' OR queue_name = '' OR group_name = '' THEN
        RAISE EXCEPTION 'an empty text matches nothing that is meant: leave the condition out to match all'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO penstock.dead_letter_rules (
        name, queue_name, group_name, reason, error_text, backoff, backoff_factor, max_redrives
    ) VALUES (
        rule_name, add_rule.queue_name, add_rule.group_name, wanted_reason, add_rule.error_text, add_rule.backoff,
        add_rule.backoff_factor, add_rule.max_redrives
    )
    ON CONFLICT (name) DO NOTHING
    RETURNING rule_id INTO made;
    IF made IS NULL THEN
        RAISE EXCEPTION 'there is a rule "%" already', rule_name
            USING ERRCODE = 'duplicate_object', HINT = 'Delete it first, or take another name.';
    END IF;
    RETURN made;
END
$$;
