-- penstock.pop(queue_name, group_name, partition_name, max_messages, lease_time, consumer)
--
-- Claims a partition that has messages for a group and returns them, a row per message: SELECT * FROM
-- penstock.pop('orders', 'billing'). Settle with ack, nack or renew, by the lease id.
--
-- Parameters: partition_name - null for any; lease_time - seconds, null for the group's or the queue's; consumer - a
-- name for operators.
-- Returns: a row per message, in order; none if there is nothing to deliver.
-- Calls: pop_claims, unpack. Tables: none of its own.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.pop(
    queue_name     text,
    group_name     text    DEFAULT 'default',
    partition_name text    DEFAULT NULL,
    max_messages   integer DEFAULT 100,
    lease_time     float8  DEFAULT NULL,
    consumer       text    DEFAULT NULL
)
RETURNS TABLE (
    lease_id uuid, lease_until timestamptz, popped_from text, attempt smallint,
    id uuid, message_offset bigint, key text, payload bytea, headers jsonb, created_at timestamptz
)
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.lease_id, c.lease_until, c.partition_of, c.attempt, m.*
    FROM penstock.pop_claims(
        queue_name, group_name, partition_name, max_messages, lease_time => pop.lease_time, consumer => pop.consumer
    ) c
    CROSS JOIN LATERAL penstock.unpack(
        c.partition_id, c.base_offset, c.count, c.created_at, c.run_skip, c.run_counts, c.run_times,
        c.body_start, c.body, c.ends, c.key_start, c.keys, c.key_ends, c.header_start, c.headers, c.header_ends
    ) m
$$;
