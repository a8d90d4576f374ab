-- penstock.heed_cancelled(reader, target, start_offset, stop_offset)
--
-- Notes that cancellations were in time: a pop has passed the messages, or their worker has not gone on with them. It is what
-- tells a message that was cancelled from one that was handled before anybody heard of that. Waits for nobody: a message that
-- somebody is cancelling again just now is left out.
--
-- Parameters: the ids of group and partition, and the range.
-- Returns: nothing.
-- Calls: nothing. Tables: cancellations (update).
CREATE OR REPLACE FUNCTION penstock.heed_cancelled(reader integer, target bigint, start_offset bigint, stop_offset bigint)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE penstock.cancellations c
    SET heeded = true
    WHERE c.ctid = ANY (ARRAY(
        SELECT w.ctid FROM penstock.cancellations w
        WHERE w.group_id = reader AND w.partition_id = target AND NOT w.passed AND NOT w.heeded
          AND w.message_offset >= start_offset AND w.message_offset < stop_offset
        FOR UPDATE SKIP LOCKED
    ))
$$;
