-- penstock.free_slots(lease, held)
--
-- Gives back the slots of messages that were settled, and wakes as many of those who wait for them: whoever ends a claim of
-- a gated group, or a part of it, calls it in the same transaction.
--
-- Parameters: lease - of the claim; held - the offsets that it still has: none when it has ended.
-- Returns: nothing.
-- Calls: wake_waiters, send_hint. Tables: slots (update, delete), consumer_groups, limited_keys (read).
CREATE OR REPLACE FUNCTION penstock.free_slots(lease uuid, held int8multirange DEFAULT '{}')
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    freed  record;
    waited integer := 0;
    target integer;
BEGIN
    -- Most claims have none.
    IF NOT EXISTS (SELECT 1 FROM penstock.slots s WHERE s.lease_id = lease) THEN
        RETURN;
    END IF;
    FOR freed IN
        WITH kept AS MATERIALIZED (
            SELECT s.group_id, s.key, s.messages, s.offsets * held AS offsets, least(
                (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM unnest(s.offsets * held) r),
                -- One for all of them, where they are worked on one after the other.
                CASE g.mode WHEN 'ordered' THEN 1 END
            )::integer AS still
            FROM penstock.slots s
            JOIN penstock.consumer_groups g ON g.group_id = s.group_id
            WHERE s.lease_id = lease
        ), gone AS (
            DELETE FROM penstock.slots s
            USING kept k
            WHERE s.group_id = k.group_id AND s.key = k.key AND s.lease_id = lease AND k.still = 0
        ), shrunk AS (
            UPDATE penstock.slots s
            SET messages = k.still, offsets = k.offsets
            FROM kept k
            WHERE s.group_id = k.group_id AND s.key = k.key AND s.lease_id = lease AND k.still BETWEEN 1 AND k.messages - 1
        )
        SELECT k.group_id, k.key, k.messages - k.still AS messages FROM kept k WHERE k.still < k.messages
    LOOP
        target := freed.group_id;
        waited := waited + penstock.wake_waiters(freed.group_id, 'c', freed.key, freed.messages);
        -- Of a limit for the whole group, those who wait are the consumers themselves.
        IF freed.key = '' AND EXISTS (
            SELECT 1 FROM penstock.limited_keys k
            WHERE k.group_id = freed.group_id AND k.kind = 'c' AND k.key = '' AND k.look_at IS NOT NULL
        ) THEN
            waited := waited + 1;
        END IF;
    END LOOP;
    IF waited > 0 THEN
        PERFORM penstock.send_hint(target);
    END IF;
END
$$;
