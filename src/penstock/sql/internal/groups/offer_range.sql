-- penstock.offer_range(held, from_offset, to_offset, attempt, first_error, last_error)
--
-- Puts a range of a shared group back in the ready list, as one entry. A range with attempts is delivered one message
-- at a time.
--
-- Parameters: held - the claim that the range was part of; the others - the columns of the entry.
-- Returns: nothing.
-- Calls: nothing. Tables: partitions (read), ready (insert).
CREATE OR REPLACE FUNCTION penstock.offer_range(
    held penstock.claims, from_offset bigint, to_offset bigint, attempt smallint, first_error text, last_error text
)
RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO penstock.ready (group_id, priority, seq, partition_id, lo, hi, attempt, first_error, last_error)
    SELECT
        held.group_id, p.priority, nextval('penstock.ready_seq'), p.partition_id, from_offset, to_offset,
        offer_range.attempt, offer_range.first_error, offer_range.last_error
    FROM penstock.partitions p
    WHERE p.partition_id = held.partition_id
$$;
