-- penstock.pop_claims(queue_name, group_name, partition_name, max_messages, max_bytes, max_partitions, lease_time,
--                     consumer, auto_ack, lows, passing, durable, first_use)
--
-- Claims partitions that have messages for a group and returns the messages, still packed. Queue and group come into
-- being on first use. It takes partitions from the front of the ready list, so the one that waited longest comes first;
-- it never waits. With nothing to give it writes nothing.
--
-- Parameters: partition_name - null for any; max_messages and max_bytes - of each partition; lease_time - seconds,
-- null for the group's or the queue's; consumer - a name for operators; auto_ack - count as done what is handed out
-- (at most once); lows - for each of the queue's priorities, where in the ready list to begin: a client that has just taken an
-- entry looks no further back, until it does so again every few seconds. Null begins at the front; passing - ids of
-- partitions to leave alone; durable - false commits the caller's transaction without waiting for the disk, unless auto_ack:
-- a claim that a crash of the server undoes is delivered again. Only for a caller who does nothing else in it;
-- first_use - false: a queue or group that does not exist, or cannot be popped, has nothing to give.
-- Returns: for each claim one row per slice. `claimed_from` is where the claim begins, `entry_seq` which ready list entry
-- it had, `entry_level` which of the priorities, `shared` the group's mode.
-- Calls: ack_and_pop. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.pop_claims(
    queue_name     text,
    group_name     text,
    partition_name text    DEFAULT NULL,
    max_messages   integer DEFAULT 100,
    max_bytes      bigint  DEFAULT 8388608,
    max_partitions integer DEFAULT 1,
    lease_time     float8  DEFAULT NULL,
    consumer       text    DEFAULT NULL,
    auto_ack       boolean DEFAULT false,
    lows           bigint[] DEFAULT NULL,
    passing        bigint[] DEFAULT NULL,
    durable        boolean  DEFAULT true,
    first_use      boolean  DEFAULT true
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
#variable_conflict use_variable
BEGIN
    RETURN QUERY
    SELECT
        c.group_id, c.partition_id, c.partition_of, c.lease_id, c.lease_until, c.attempt, c.claimed_from, c.claimed_to,
        c.entry_level, c.entry_seq, c.shared, c.base_offset, c.count, c.created_at, c.run_skip, c.run_counts, c.run_times,
        c.body_start, c.body, c.ends, c.key_start, c.keys, c.key_ends, c.header_start, c.headers, c.header_ends
    FROM penstock.ack_and_pop(
        NULL, NULL, NULL, NULL, NULL, queue_name, group_name, partition_name, max_messages, max_bytes, max_partitions,
        lease_time, consumer, auto_ack, lows, durable, passing, first_use
    ) c;
END
$$;
