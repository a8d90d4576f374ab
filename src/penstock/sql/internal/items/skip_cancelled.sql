-- penstock.skip_cancelled(reader, target, start_offset, stop_offset)
--
-- Cuts what a pop may claim where messages were cancelled: those that come first are passed, and the claim ends before the
-- next one. It costs as much as messages are passed, however many are cancelled behind them.
--
-- Parameters: the ids of group and partition, and the range.
-- Returns: the range that is left; both are stop_offset where nothing is.
-- Calls: nothing. Tables: cancellations (read).
CREATE OR REPLACE FUNCTION penstock.skip_cancelled(
    reader integer, target bigint, INOUT start_offset bigint, INOUT stop_offset bigint
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    passed integer;
BEGIN
    LOOP
        -- Those that follow one another from the start on.
        SELECT count(*) INTO passed
        FROM (
            SELECT c.message_offset, row_number() OVER () - 1 AS nth
            FROM (
                SELECT c.message_offset FROM penstock.cancellations c
                WHERE c.group_id = reader AND c.partition_id = target AND NOT c.passed
                  AND c.message_offset >= start_offset AND c.message_offset < stop_offset
                ORDER BY c.message_offset
                LIMIT 100
            ) c
        ) c
        WHERE c.message_offset = start_offset + c.nth;
        start_offset := start_offset + passed;
        EXIT WHEN passed < 100;
    END LOOP;
    stop_offset := coalesce((
        SELECT c.message_offset FROM penstock.cancellations c
        WHERE c.group_id = reader AND c.partition_id = target AND NOT c.passed
          AND c.message_offset > start_offset AND c.message_offset < stop_offset
        ORDER BY c.message_offset
        LIMIT 1
    ), stop_offset);
END
$$;
