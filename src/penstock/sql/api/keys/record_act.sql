-- penstock.record_act(actor, action, target, details, origin, result)
--
-- Writes an administrative act to the audit log, in the transaction of what it is about, and deletes a few acts that are
-- older than 400 days or beyond the newest million.
--
-- Parameters: actor - who did it, such as key:billing; null for the database user; action - what, such as delete_queue;
-- target - what it is about; details - its arguments; origin - the address that it came from; null for the session's;
-- result - ok, or the code of the error.
-- Returns: the id of the act.
-- Calls: nothing. Tables: audit_log (insert, delete).
-- Granted to: gateway.
CREATE OR REPLACE FUNCTION penstock.record_act(
    actor text, action text, target text, details jsonb DEFAULT NULL, origin text DEFAULT NULL, result text DEFAULT 'ok'
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made bigint;
BEGIN
    INSERT INTO penstock.audit_log (actor, action, target, details, origin, result, db_user)
    VALUES (
        left(coalesce(record_act.actor, 'user:' || session_user), 300), left(record_act.action, 100),
        left(record_act.target, 1000),
        CASE WHEN octet_length(record_act.details::text) <= 10000 THEN record_act.details END,
        left(coalesce(record_act.origin, host(inet_client_addr()), 'local'), 100), left(record_act.result, 100),
        session_user
    )
    RETURNING act_id INTO made;
    -- The oldest few are looked at, and locked only if they go.
    DELETE FROM penstock.audit_log a
    WHERE a.act_id IN (
        SELECT o.act_id
        FROM (SELECT e.act_id, e.at FROM penstock.audit_log e ORDER BY e.act_id LIMIT 20) o
        WHERE o.act_id <= made - 1000000 OR o.at < clock_timestamp() - interval '400 days'
    );
    RETURN made;
END
$$;
