-- penstock.delete_rule(rule_name)
--
-- Deletes a rule. Dead letters stay as they are.
--
-- Parameters: rule_name.
-- Returns: nothing; raises undefined_object if there is no such rule.
-- Calls: nothing. Tables: dead_letter_rules (delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.delete_rule(rule_name text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM penstock.dead_letter_rules r WHERE r.name = rule_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no rule "%"', rule_name
            USING ERRCODE = 'undefined_object', HINT = '"penstock rule list" lists those there are.';
    END IF;
END
$$;
