-- penstock.newest_uncancelled(reader, target, start_offset, stop_offset)
--
-- Finds the newest message of a range that was not cancelled, for a group that conflates. It costs as much as messages
-- behind that one were cancelled.
--
-- Parameters: the ids of group and partition, and the range.
-- Returns: its offset; null if all of them were cancelled, or there is none.
-- Calls: nothing. Tables: cancellations (read).
CREATE OR REPLACE FUNCTION penstock.newest_uncancelled(
    reader integer, target bigint, start_offset bigint, stop_offset bigint
)
RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    newest bigint := stop_offset - 1;
    passed integer;
BEGIN
    LOOP
        -- Those that follow one another from the end on.
        SELECT count(*) INTO passed
        FROM (
            SELECT c.message_offset, row_number() OVER () - 1 AS nth
            FROM (
                SELECT c.message_offset FROM penstock.cancellations c
                WHERE c.group_id = reader AND c.partition_id = target
                  AND c.message_offset >= start_offset AND c.message_offset <= newest
                ORDER BY c.message_offset DESC
                LIMIT 100
            ) c
        ) c
        WHERE c.message_offset = newest - c.nth;
        newest := newest - passed;
        EXIT WHEN passed < 100;
    END LOOP;
    RETURN CASE WHEN newest >= start_offset THEN newest END;
END
$$;
