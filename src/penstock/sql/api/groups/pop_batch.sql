-- penstock.pop_batch(requests)
--
-- Answers many pops in one call, as JSON: SELECT penstock.pop_batch('[{"request_id": "a", "queue_name": "orders",
-- "consumer_group": "billing", "batch_size": 10}]'). Requests of one group that take any partition get different
-- ones, and none that another request of the batch names; of several that name the same partition, one gets it.
-- Settle with ack, nack or renew, by the lease id.
--
-- Queues and groups are created on first use. A request for which that would have to wait for a push in progress gets
-- nothing this time, if there are other requests in the batch.
--
-- Parameters: requests - an array of objects: request_id and queue_name; partition_name ('*' or null: any),
-- consumer_group (default "default"), batch_size (largest number of messages, default 1), lease_time_seconds (0: the
-- group's or the queue's), consumer (a name for operators).
-- Returns: an object with an answer per request id: leaseId, leaseExpiresAt, queue, partition, messages [messageId,
-- payload, createdAt, traceId]. If there is nothing to deliver, leaseId is null and messages is empty. A value that
-- is not JSON is in payloadText, or in payloadBase64, instead of payload; traceId is the message's header of that
-- name.
-- Calls: require_read_committed, ensure_group, queue_lock_class, pop_claims_batch, unpack, payload_json. Tables:
-- queues, consumer_groups (read).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.pop_batch(requests jsonb)
RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted  record;
    lacking record;
    problem text;
    answers jsonb;
BEGIN
    PERFORM penstock.require_read_committed('pop_batch');
    IF jsonb_typeof(requests) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'requests must be a JSON array of objects' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT
        array_agg(r.request_id ORDER BY r.position) AS ids,
        array_agg(r.queue_name ORDER BY r.position) AS queues,
        array_agg(r.consumer_group ORDER BY r.position) AS groups,
        array_agg(r.partition_name ORDER BY r.position) AS partitions,
        array_agg(r.batch_size ORDER BY r.position) AS sizes,
        array_agg(r.lease_time ORDER BY r.position) AS leases,
        array_agg(r.consumer ORDER BY r.position) AS consumers,
        count(*)::integer AS many
    INTO wanted
    FROM (
        SELECT
            e.position, e.request ->> 'request_id' AS request_id, e.request ->> 'queue_name' AS queue_name,
            coalesce(e.request ->> 'consumer_group', 'default') AS consumer_group,
            nullif(e.request ->> 'partition_name', '*') AS partition_name,
            coalesce((e.request ->> 'batch_size')::integer, 1) AS batch_size,
            nullif((e.request ->> 'lease_time_seconds')::float8, 0) AS lease_time,
            e.request ->> 'consumer' AS consumer
        FROM jsonb_array_elements(requests) WITH ORDINALITY e (request, position)
    ) r;
    IF wanted.many = 0 THEN
        RETURN '{}';
    END IF;
    SELECT CASE
        WHEN r.id IS NULL THEN format('request %s has no request_id', r.position)
        WHEN r.queue IS NULL THEN format('request "%s" has no queue_name', r.id)
        WHEN r.size < 1 THEN format('request "%s": batch_size is %s but must be above 0', r.id, r.size)
        WHEN r.lease < 0 OR r.lease > 604800
            THEN format('request "%s": lease_time_seconds is %s but must be from 0 to 604800', r.id, r.lease)
        WHEN count(*) OVER (PARTITION BY r.id) > 1 THEN format('two requests have the request_id "%s"', r.id)
    END AS said
    INTO problem
    FROM unnest(wanted.ids, wanted.queues, wanted.sizes, wanted.leases) WITH ORDINALITY
        r (id, queue, size, lease, position)
    ORDER BY 1 NULLS LAST
    LIMIT 1;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;

    FOR lacking IN
        SELECT w.queue_name, w.group_name, count(*) AS many
        FROM unnest(wanted.queues, wanted.groups) w (queue_name, group_name)
        WHERE NOT EXISTS (
            SELECT 1 FROM penstock.queues q
            JOIN penstock.consumer_groups g ON g.queue_id = q.queue_id
            WHERE q.name = w.queue_name AND g.name = w.group_name
        )
        GROUP BY 1, 2
        ORDER BY 1, 2
    LOOP
        -- Making a group waits where its queue is being made or deleted; the others of the batch must not.
        IF lacking.many = wanted.many OR coalesce((
            SELECT pg_try_advisory_xact_lock_shared(penstock.queue_lock_class(), q.queue_id)
            FROM penstock.queues q WHERE q.name = lacking.queue_name
        ), false) THEN
            PERFORM penstock.ensure_group(lacking.queue_name, lacking.group_name);
        END IF;
    END LOOP;

    SELECT jsonb_object_agg(w.id, coalesce(a.answer, '{"leaseId": null, "messages": []}'))
    INTO answers
    FROM unnest(wanted.ids) WITH ORDINALITY w (id, position)
    LEFT JOIN (
        SELECT
            c.request,
            jsonb_build_object(
                'leaseId', min(c.lease_id::text), 'leaseExpiresAt', min(c.lease_until),
                'queue', min(wanted.queues[c.request]), 'partition', min(c.partition_of),
                'messages', jsonb_agg(
                    jsonb_build_object(
                        'messageId', m.id, 'createdAt', m.message_time, 'traceId', m.message_headers ->> 'traceId'
                    ) || penstock.payload_json(m.payload)
                    ORDER BY m.message_offset
                )
            ) AS answer
        FROM penstock.pop_claims_batch(
            wanted.queues, wanted.groups, wanted.partitions, wanted.sizes,
            array_fill(8388608::bigint, ARRAY[wanted.many]), array_fill(1, ARRAY[wanted.many]), wanted.leases,
            wanted.consumers, array_fill(false, ARRAY[wanted.many]), array_fill(NULL::text, ARRAY[wanted.many])
        ) c
        CROSS JOIN LATERAL penstock.unpack(
            c.partition_id, c.base_offset, c.count, c.created_at, c.run_skip, c.run_counts, c.run_times,
            c.body_start, c.body, c.ends, c.key_start, c.keys, c.key_ends, c.header_start, c.headers, c.header_ends
        ) m
        WHERE c.partition_id IS NOT NULL
        GROUP BY c.request
    ) a ON a.request = w.position;
    RETURN answers;
END
$$;
