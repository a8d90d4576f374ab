-- penstock.delete_positions(target_groups, targets)
--
-- Deletes the positions, ready list entries and claims of groups in partitions; the claims lose their lease. Waits
-- for transactions that are changing them, and repeats until nothing is left, because what such a transaction inserts
-- cannot be seen before it commits. The caller prevents new ones.
--
-- Parameters: target_groups - group ids; targets - partition ids, null for all partitions.
-- Returns: nothing.
-- Calls: nothing. Tables: journal, ready, claims, skips, beginnings, slots, waiters, limited_keys, item_steps, item_notes,
-- item_results, cancellations, warm_leases (delete).
CREATE OR REPLACE FUNCTION penstock.delete_positions(target_groups integer[], targets bigint[])
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM penstock.skips k
    WHERE k.group_id = ANY (target_groups) AND (targets IS NULL OR k.partition_id = ANY (targets));
    DELETE FROM penstock.beginnings b
    WHERE b.group_id = ANY (target_groups) AND (targets IS NULL OR b.partition_id = ANY (targets));
    DELETE FROM penstock.item_steps s
    WHERE s.group_id = ANY (target_groups) AND (targets IS NULL OR s.partition_id = ANY (targets));
    DELETE FROM penstock.item_notes n
    WHERE n.group_id = ANY (target_groups) AND (targets IS NULL OR n.partition_id = ANY (targets));
    DELETE FROM penstock.item_results r
    WHERE r.group_id = ANY (target_groups) AND (targets IS NULL OR r.partition_id = ANY (targets));
    DELETE FROM penstock.cancellations c
    WHERE c.group_id = ANY (target_groups) AND (targets IS NULL OR c.partition_id = ANY (targets));
    LOOP
        -- The ready list has no index by partition; the journal has the sequence numbers of its entries.
        WITH gone AS (
            DELETE FROM penstock.journal j
            WHERE j.group_id = ANY (target_groups) AND (targets IS NULL OR j.partition_id = ANY (targets))
            RETURNING j.group_id, j.ready_seq
        )
        DELETE FROM penstock.ready y
        USING gone d, penstock.consumer_groups g, penstock.queues q
        WHERE d.ready_seq IS NOT NULL AND g.group_id = d.group_id AND q.queue_id = g.queue_id
          AND y.group_id = d.group_id AND y.priority = ANY (q.priorities) AND y.seq = d.ready_seq;
        DELETE FROM penstock.claims c
        WHERE c.group_id = ANY (target_groups) AND (targets IS NULL OR c.partition_id = ANY (targets));
        DELETE FROM penstock.ready y
        WHERE y.group_id = ANY (target_groups)
          AND (targets IS NULL OR y.lo IS NOT NULL AND y.partition_id = ANY (targets));
        EXIT WHEN NOT EXISTS (
            SELECT 1 FROM penstock.journal j
            WHERE j.group_id = ANY (target_groups) AND (targets IS NULL OR j.partition_id = ANY (targets))
        ) AND NOT EXISTS (
            SELECT 1 FROM penstock.claims c
            WHERE c.group_id = ANY (target_groups) AND (targets IS NULL OR c.partition_id = ANY (targets))
        ) AND NOT EXISTS (
            SELECT 1 FROM penstock.ready y
            WHERE y.group_id = ANY (target_groups)
              AND (targets IS NULL OR y.lo IS NOT NULL AND y.partition_id = ANY (targets))
        );
    END LOOP;
    -- Those who were popping have committed.
    DELETE FROM penstock.slots s
    WHERE s.group_id = ANY (target_groups) AND (targets IS NULL OR s.partition_id = ANY (targets));
    DELETE FROM penstock.waiters w
    WHERE w.group_id = ANY (target_groups) AND (targets IS NULL OR w.partition_id = ANY (targets));
    DELETE FROM penstock.limited_keys k WHERE k.group_id = ANY (target_groups) AND targets IS NULL;
    DELETE FROM penstock.warm_leases w WHERE w.group_id = ANY (target_groups) AND targets IS NULL;
END
$$;
