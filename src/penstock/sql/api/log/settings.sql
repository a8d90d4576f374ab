-- penstock.settings()
--
-- Returns the settings of a queue: name, kind, default, bounds and description. Validation, defaults, error messages
-- and documentation are all derived from it.
--
-- Returns: one row per setting, in the order of the documentation.
-- Calls: nothing. Tables: none.
-- Granted to: producer, consumer.
CREATE OR REPLACE FUNCTION penstock.settings()
RETURNS TABLE (
    name          text,
    kind          text,
    default_value jsonb,
    minimum       numeric,
    maximum       numeric,
    choices       text[],
    meaning       text
)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    VALUES
    ('lease_time', 'seconds', '300'::jsonb, 0.001, 604800, NULL::text[],
     'seconds until a claim expires and its messages are delivered again'),
    ('max_attempts', 'count', '5', 1, 32767, NULL,
     'deliveries before a message becomes a dead letter'),
    ('backoff_initial', 'seconds', '1', 0, 86400, NULL,
     'seconds to wait after the first failure'),
    ('backoff_factor', 'factor', '2', 1, 100, NULL,
     'factor by which each further wait grows'),
    ('backoff_max', 'seconds', '300', 0, 604800, NULL,
     'the longest wait between two attempts, in seconds'),
    ('delay', 'seconds', '0', 0, 31536000, NULL,
     'minimum age in seconds before a message is delivered'),
    ('quiet_period', 'seconds', '0', 0, 31536000, NULL,
     'seconds without pushes before a partition is delivered (alias window_buffer)'),
    ('durable_acks', 'boolean', 'true', NULL, NULL, '{true,false}',
     'whether an ack waits until it is on disk; with false a crash of the server may deliver again what was acknowledged last'),
    ('retention_time', 'seconds or null', 'null', 0.001, 3155760000, NULL,
     'maximum age in seconds; older messages are dropped; null: no limit'),
    ('retention_bytes', 'count or null', 'null', 1, 1125899906842624, NULL,
     'maximum bytes of a partition; its oldest messages are dropped; null: no limit'),
    ('retention_rule', 'choice', '"keep_until_consumed"', NULL, NULL, '{keep_until_consumed,drop_and_count}',
     'whether retention waits for the slowest group, or drops and counts what it missed'),
    ('keep_until_archived', 'choice', '"auto"', NULL, NULL, '{auto,on,off}',
     'whether retention waits for penstock archive; auto: after the first archive of the queue was begun'),
    ('max_message_bytes', 'count', '1048576', 1, 268435456, NULL,
     'maximum size of a value'),
    ('compression', 'choice', '"auto"', NULL, NULL, '{auto,on,off}',
     'auto: lz4 where the server has it, else none; on: the best method of the server; off: none'),
    ('spread', 'count', '1', 1, 65536, NULL,
     'number of partitions for pushes without a partition'),
    ('dedupe_window', 'seconds', '0', 0, 31536000, NULL,
     'seconds for which a message''s dedupe_id rejects duplicates in its partition; 0: dedupe ids are refused')
$$;
