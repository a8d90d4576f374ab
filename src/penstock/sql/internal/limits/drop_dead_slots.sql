-- penstock.drop_dead_slots(target_group, wanted)
--
-- Deletes slots of claims that are not held any more. There are some only where the group had no limit when they ended, or
-- where a restore has left them.
--
-- Parameters: target_group; wanted - the key.
-- Returns: how many were deleted.
-- Calls: newest_state. Tables: slots (delete), claims (read).
CREATE OR REPLACE FUNCTION penstock.drop_dead_slots(target_group integer, wanted text)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    dropped integer;
BEGIN
    DELETE FROM penstock.slots s
    WHERE s.ctid = ANY (ARRAY(
        SELECT s.ctid FROM penstock.slots s
        WHERE s.group_id = target_group AND s.key = wanted
          AND NOT EXISTS (
              SELECT 1 FROM penstock.newest_state(s.group_id, s.partition_id) j
              WHERE j.state = 'c' AND j.lease_id = s.lease_id
          ) AND NOT EXISTS (
              SELECT 1 FROM penstock.claims c
              WHERE c.group_id = s.group_id AND c.partition_id = s.partition_id AND c.lease_id = s.lease_id
          )
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS dropped = ROW_COUNT;
    RETURN dropped;
END
$$;
