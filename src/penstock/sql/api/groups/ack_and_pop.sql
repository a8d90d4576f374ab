-- penstock.ack_and_pop(group_ids, partition_ids, lease_ids, starts, stops, queue_name, group_name, partition_name,
--                      max_messages, max_bytes, max_partitions, lease_time, consumer, auto_ack, lows, durable)
--
-- Acknowledges claims and claims what is next, in one call: a consumer makes one round trip and one commit per batch. The
-- acks come first and do not depend on what is there to pop: a lease that was lost is told in `acked`, and the pop goes on.
--
-- Nothing that the pop finds raises an error. Unlike pop_claims it creates neither queue nor group: where there is none, or
-- the group is external, it acknowledges and claims nothing, and pop_claims says why. Arguments that are wrong are
-- refused before anything is done. An error of the server (a lock timeout, a lost connection) undoes the whole call:
-- then nothing is acknowledged, and the caller sends the acks again, by themselves.
--
-- Parameters: those of ack_claims, whose arrays may be empty, then those of pop_claims; durable - false commits the caller's
-- transaction without waiting for the disk, where nothing is acknowledged, or by groups whose `durable_acks` is false, and
-- not with auto_ack.
-- Returns: the rows of pop_claims behind `acked`, what ack_claims returns, the same in each. With nothing to claim there
-- is one row, whose partition_id is null.
-- Calls: ack_claims, pop_claims. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.ack_and_pop(
    group_ids      integer[],
    partition_ids  bigint[],
    lease_ids      uuid[],
    starts         bigint[],
    stops          bigint[],
    queue_name     text,
    group_name     text,
    partition_name text     DEFAULT NULL,
    max_messages   integer  DEFAULT 100,
    max_bytes      bigint   DEFAULT 8388608,
    max_partitions integer  DEFAULT 1,
    lease_time     float8   DEFAULT NULL,
    consumer       text     DEFAULT NULL,
    auto_ack       boolean  DEFAULT false,
    lows           bigint[] DEFAULT NULL,
    durable        boolean  DEFAULT true
)
RETURNS TABLE (
    acked boolean[],
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
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_variable
BEGIN
    IF (max_messages > 0 AND max_partitions > 0 AND max_bytes > 0) IS NOT TRUE OR lease_time <= 0 OR lease_time > 604800 THEN
        RAISE EXCEPTION 'max_messages, max_bytes, max_partitions and lease_time must be above 0, and lease_time at most 604800'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    acked := '{}';
    IF cardinality(lease_ids) > 0 THEN
        acked := penstock.ack_claims(group_ids, partition_ids, lease_ids, starts, stops, durable OR auto_ack);
        durable := true; -- the acks have said whether this transaction may commit without waiting
    END IF;
    -- A new statement, hence a new snapshot: the ready list has what the acks put there.
    RETURN QUERY
    SELECT acked, c.*
    FROM penstock.pop_claims(
        queue_name, group_name, partition_name, max_messages, max_bytes, max_partitions, lease_time, consumer, auto_ack,
        lows, NULL, durable, false
    ) c;
    IF NOT FOUND THEN
        RETURN NEXT;
    END IF;
END
$$;
