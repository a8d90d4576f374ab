-- penstock.open_gate(target_group, settings, shared)
--
-- Says how much a pop of a gated group may claim: nothing while it is paused, held or at a limit for the whole group; one
-- message as a probe, once, when a hold that probes is over. It waits for nobody, and with nothing to give it writes
-- nothing, but for the first who finds the group at its limit.
--
-- Parameters: target_group; settings - the group's; shared - its mode.
-- Returns: the most messages and partitions, 0 where nothing may be claimed; after how many entries of the ready list that
-- had nothing to give the pop ends; whether it is a probe: then the caller calls note_probe when the message was claimed.
-- Calls: hold_over, group_allows, await_group, lock_limited_keys. Tables: consumer_groups (lock), ready (read).
CREATE OR REPLACE FUNCTION penstock.open_gate(
    target_group integer, settings jsonb, shared boolean,
    OUT messages integer, OUT partitions integer, OUT patience integer, OUT probing boolean
)
LANGUAGE plpgsql
AS $$
DECLARE
    held    record;
    tokens  integer;
    free    integer;
    kinds   "char"[] := ARRAY(
        SELECT l.kind::"char"
        FROM (VALUES ('r', 'rate_limit', 'rate_by'), ('c', 'concurrency_limit', 'concurrency_by')) l (kind, most, source)
        WHERE settings ? l.most AND settings ->> l.source = 'group'
    );
    kind_of "char";
BEGIN
    messages := 0;
    partitions := 0;
    patience := 1000;
    probing := false;
    IF settings @> '{"paused": true}' THEN
        RETURN;
    END IF;
    SELECT h.* INTO held FROM penstock.hold_over(target_group) h;
    IF NOT held.over THEN
        RETURN;
    END IF;
    IF NOT held.probing AND kinds = '{}' THEN
        messages := 2147483647;
        partitions := 2147483647;
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM penstock.ready y WHERE y.group_id = target_group) THEN
        RETURN;
    END IF;
    IF held.probing THEN
        -- One at a time, and whoever finds it locked goes away.
        PERFORM 1 FROM penstock.consumer_groups g WHERE g.group_id = target_group FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        -- A new statement, hence a new snapshot: look again under the lock.
        SELECT h.* INTO held FROM penstock.hold_over(target_group) h;
        IF NOT held.over THEN
            RETURN;
        END IF;
        probing := held.probing;
    END IF;
    IF kinds <> '{}' THEN
        SELECT a.tokens, a.free INTO tokens, free FROM penstock.group_allows(target_group, settings) a;
        IF tokens <= 0 OR free <= 0 THEN
            PERFORM penstock.await_group(target_group, settings);
            RETURN;
        END IF;
        -- Here, and not for each partition: whoever does not get it leaves the ready list as it is.
        FOREACH kind_of IN ARRAY kinds LOOP
            PERFORM 1 FROM penstock.lock_limited_keys(target_group, kind_of, ARRAY['']);
            IF NOT FOUND THEN
                RETURN;
            END IF;
        END LOOP;
        SELECT a.tokens, a.free INTO tokens, free FROM penstock.group_allows(target_group, settings) a;
        IF tokens <= 0 OR free <= 0 THEN
            PERFORM penstock.await_group(target_group, settings);
            RETURN;
        END IF;
        patience := 1;
    END IF;
    -- A null is no limit. A claim of an ordered group takes one slot, however many messages it has.
    partitions := CASE WHEN probing THEN 1 ELSE least(tokens, free, 2147483647) END;
    messages := CASE
        WHEN probing THEN 1 ELSE least(tokens, CASE WHEN shared THEN free END, 2147483647) END;
END
$$;
