-- penstock.require_read_committed(caller)
--
-- Raises an error unless the transaction is READ COMMITTED. Above that a statement does not see what was committed
-- after the first statement of the transaction, so the state of a group that it sees may be out of date.
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
