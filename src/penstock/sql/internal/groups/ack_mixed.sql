-- penstock.ack_mixed(group_ids, partition_ids, lease_ids, starts, stops)
--
-- Acknowledges claims of which some or all are of shared groups; see ack_claims.
--
-- Parameters: as in ack_claims.
-- Returns: for each entry, in the order given, whether it was acknowledged.
-- Calls: ack_shared, ack_claims. Tables: consumer_groups (read).
CREATE OR REPLACE FUNCTION penstock.ack_mixed(
    group_ids integer[], partition_ids bigint[], lease_ids uuid[], starts bigint[], stops bigint[]
)
RETURNS boolean[]
LANGUAGE plpgsql
AS $$
DECLARE
    part    record;
    answers boolean[];
    acked   boolean[];
BEGIN
    -- Ordered groups first: all callers take the locks in the same order.
    FOR part IN
        SELECT
            coalesce(g.mode = 'shared', false) AS shared,
            array_agg(u.position ORDER BY u.position) AS positions,
            array_agg(u.group_id ORDER BY u.position) AS group_ids,
            array_agg(u.partition_id ORDER BY u.position) AS partition_ids,
            array_agg(u.lease_id ORDER BY u.position) AS lease_ids,
            array_agg(u.start ORDER BY u.position) AS starts,
            array_agg(u.stop ORDER BY u.position) AS stops
        FROM unnest(group_ids, partition_ids, lease_ids, starts, stops) WITH ORDINALITY
            u (group_id, partition_id, lease_id, start, stop, position)
        LEFT JOIN penstock.consumer_groups g ON g.group_id = u.group_id
        GROUP BY 1
        ORDER BY 1
    LOOP
        IF part.shared THEN
            answers := penstock.ack_shared(
                part.group_ids, part.partition_ids, part.lease_ids, part.starts, part.stops
            );
        ELSE
            answers := penstock.ack_claims(
                part.group_ids, part.partition_ids, part.lease_ids, part.starts, part.stops
            );
        END IF;
        FOR i IN 1 .. cardinality(answers) LOOP
            acked[part.positions[i]] := answers[i];
        END LOOP;
    END LOOP;
    RETURN acked;
END
$$;
