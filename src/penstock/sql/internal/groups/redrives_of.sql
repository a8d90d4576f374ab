-- penstock.redrives_of(of_partition, headers)
--
-- Returns how often a dead letter was redriven by rules. Only in a private lane the header that says so is ours: outside
-- of lanes it is the sender's, and says nothing.
--
-- Parameters: the partition and the headers of the dead letter.
-- Returns: the number, 0 for one that was never redriven by a rule.
-- Calls: nothing. Tables: partitions (read).
CREATE OR REPLACE FUNCTION penstock.redrives_of(of_partition bigint, headers jsonb)
RETURNS integer
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN headers ->> 'penstock-redrives' ~ '^[0-9]{1,6}$' AND EXISTS (
            SELECT 1 FROM penstock.partitions p WHERE p.partition_id = of_partition AND p.lane_of IS NOT NULL
        ) THEN (headers ->> 'penstock-redrives')::integer
        ELSE 0
    END
$$;
