-- penstock.claim_for_window(target_group, held_epoch, max_messages, max_bytes, max_partitions, lease_time, holder, lows)
--
-- Claims what is next for the window of a group, if the caller still holds the lease of that window. The group is found by
-- its id: another one that has got its name meanwhile is left alone.
--
-- Parameters: held_epoch - that of the caller; the others are those of pop_claims.
-- Returns: the rows of pop_claims; with nothing to claim one row, whose partition_id is null. No row where the caller has
-- lost the lease, or where the group is gone or just being deleted.
-- Calls: ack_and_pop. Tables: warm_leases (read), consumer_groups (lock), queues (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.claim_for_window(
    target_group   integer,
    held_epoch     bigint,
    max_messages   integer  DEFAULT 100,
    max_bytes      bigint   DEFAULT 8388608,
    max_partitions integer  DEFAULT 1,
    lease_time     float8   DEFAULT NULL,
    holder         text     DEFAULT NULL,
    lows           bigint[] DEFAULT NULL
)
RETURNS TABLE (
    group_id integer, partition_id bigint, partition_of text, lease_id uuid, lease_until timestamptz,
    attempt smallint, claimed_from bigint, claimed_to bigint, entry_level integer, entry_seq bigint, shared boolean,
    base_offset bigint, count integer, created_at timestamptz,
    run_skip integer, run_counts integer[], run_times timestamptz[],
    body_start integer, body bytea, ends bytea,
    key_start integer, keys bytea, key_ends bytea,
    header_start integer, headers bytea, header_ends bytea
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    queue_name text;
    group_name text;
BEGIN
    -- Until this has committed nobody deletes it. Whoever is at it must not hold up other windows.
    SELECT (SELECT q.name FROM penstock.queues q WHERE q.queue_id = g.queue_id), g.name INTO queue_name, group_name
    FROM penstock.consumer_groups g
    WHERE g.group_id = target_group
      AND EXISTS (SELECT 1 FROM penstock.warm_leases w WHERE w.group_id = target_group AND w.epoch = held_epoch)
    FOR KEY SHARE OF g SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT
        c.group_id, c.partition_id, c.partition_of, c.lease_id, c.lease_until, c.attempt, c.claimed_from, c.claimed_to,
        c.entry_level, c.entry_seq, c.shared, c.base_offset, c.count, c.created_at, c.run_skip, c.run_counts, c.run_times,
        c.body_start, c.body, c.ends, c.key_start, c.keys, c.key_ends, c.header_start, c.headers, c.header_ends
    FROM penstock.ack_and_pop(
        '{}', '{}', '{}', '{}', '{}', queue_name, group_name, NULL, max_messages, max_bytes, max_partitions, lease_time,
        holder, false, lows, false, ahead => true
    ) c;
END
$$;
