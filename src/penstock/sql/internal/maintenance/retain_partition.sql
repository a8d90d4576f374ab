-- penstock.retain_partition(partition_id, settings, until)
--
-- Applies a queue's retention to a partition: drops whole segments older than retention_time, and the oldest ones if
-- the partition has more than retention_bytes. Messages that a group has not read stay, unless the queue's
-- retention_rule is drop_and_count: then the group continues at the floor and counts what it missed. Messages that
-- wait for the archive stay too. Ends when nothing is left to drop, or at `until`, so that no transaction is long.
--
-- Parameters: settings - the queue's; until - when to stop.
-- Returns: the number of segments and messages dropped, and whether that was all.
-- Calls: offset_at, consumed_to, archive_bound, drop_below. Tables: segments (read).
CREATE OR REPLACE FUNCTION penstock.retain_partition(
    partition_id bigint, settings jsonb, until timestamptz,
    OUT dropped_segments bigint, OUT dropped_messages bigint, OUT complete boolean
)
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    segment record;
    dropped record;
    cutoff  bigint := 0;
    held    bigint := 0;
    low     bigint := 0;
BEGIN
    -- Times never go back, so the segments that are too old are the first ones.
    IF settings ->> 'retention_time' IS NOT NULL THEN
        cutoff := penstock.offset_at(
            partition_id,
            clock_timestamp() - make_interval(secs => (settings ->> 'retention_time')::numeric::float8)
        );
    END IF;
    IF settings ->> 'retention_bytes' IS NOT NULL THEN
        FOR segment IN
            SELECT s.base_offset + s.count AS next_offset, s.bytes FROM penstock.segments s
            WHERE s.partition_id = retain_partition.partition_id
            ORDER BY s.base_offset DESC
        LOOP
            held := held + segment.bytes;
            IF held > (settings ->> 'retention_bytes')::bigint THEN
                cutoff := greatest(cutoff, segment.next_offset);
                EXIT;
            END IF;
        END LOOP;
    END IF;
    IF settings ->> 'retention_rule' = 'keep_until_consumed' THEN
        cutoff := least(cutoff, penstock.consumed_to(partition_id));
    END IF;
    cutoff := least(cutoff, penstock.archive_bound(partition_id, settings));
    dropped_segments := 0;
    dropped_messages := 0;
    LOOP
        SELECT * INTO dropped FROM penstock.drop_below(partition_id, cutoff, 500, low);
        dropped_segments := dropped_segments + dropped.dropped_segments;
        dropped_messages := dropped_messages + dropped.dropped_messages;
        low := dropped.dropped_to;
        complete := dropped.dropped_segments = 0;
        EXIT WHEN complete OR clock_timestamp() >= until;
    END LOOP;
END
$$;
