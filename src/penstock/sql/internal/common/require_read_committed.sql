-- penstock.require_read_committed(caller)
--
-- Refuses to go on above READ COMMITTED, where a statement does not see what was committed after the transaction's
-- first one: the state of a group, looked at so, may be an old one.
--
-- Parameters: caller - the function to name in the error.
-- Returns: nothing; raises active_sql_transaction.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_read_committed(caller text)
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'penstock.% needs a READ COMMITTED transaction, and this one is %',
            caller, upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'active_sql_transaction',
                  HINT = 'Consume in a transaction of its own, or set the isolation level to READ COMMITTED.';
    END IF;
END
$$;
