-- penstock.trim_journal(target_group, target, up_to)
--
-- Deletes journal rows older than the newest one of a (group, partition). The sweep trims behind claims when their
-- lease would have ended; this function trims rows that have no such timer. Claims stay, as history. Rows that are
-- locked are left to the next call.
--
-- Parameters: up_to - the newest version to delete; the caller has appended a newer one.
-- Returns: nothing.
-- Calls: nothing. Tables: journal (delete).
CREATE OR REPLACE FUNCTION penstock.trim_journal(target_group integer, target bigint, up_to bigint)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM penstock.journal j
    WHERE j.ctid = ANY (ARRAY(
        SELECT o.ctid FROM penstock.journal o
        WHERE o.group_id = target_group AND o.partition_id = target
          AND o.version BETWEEN up_to - 8 AND up_to AND o.state <> 'c'
        FOR UPDATE SKIP LOCKED
    ));
END
$$;
