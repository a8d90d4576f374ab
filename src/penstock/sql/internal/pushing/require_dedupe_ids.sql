-- penstock.require_dedupe_ids(targets, counts, dedupe_ids)
--
-- Raises an error if a dedupe id cannot be stored, or if its queue has no dedupe_window.
--
-- Parameters: a partition id and a count per segment; an entry per message, null for none.
-- Returns: nothing; raises invalid_parameter_value.
-- Calls: nothing. Tables: queues, partitions (read).
CREATE OR REPLACE FUNCTION penstock.require_dedupe_ids(targets bigint[], counts integer[], dedupe_ids text[])
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    lacking text;
    wrong   text;
BEGIN
    IF cardinality(dedupe_ids) <> (SELECT sum(c) FROM unnest(counts) c) THEN
        RAISE EXCEPTION '% messages require as many dedupe ids, null for none, but there are %',
            (SELECT sum(c) FROM unnest(counts) c), cardinality(dedupe_ids)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT d INTO wrong FROM unnest(dedupe_ids) d WHERE octet_length(d) NOT BETWEEN 1 AND 255 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'a dedupe id must have 1 to 255 bytes and this one has %', octet_length(wrong)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT q.name INTO lacking
    FROM (
        SELECT u.target, u.count, sum(u.count) OVER (ORDER BY u.segment) - u.count AS before
        FROM unnest(targets, counts) WITH ORDINALITY u (target, count, segment)
    ) s
    CROSS JOIN LATERAL (SELECT p.queue_id FROM penstock.partitions p WHERE p.partition_id = s.target LIMIT 1) p
    JOIN penstock.queues q ON q.queue_id = p.queue_id
    WHERE (q.settings ->> 'dedupe_window')::numeric = 0
      AND num_nonnulls(VARIADIC dedupe_ids[s.before + 1 : s.before + s.count]) > 0
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'queue "%" does not look at dedupe ids: its dedupe_window is 0', lacking
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format(
                      'Set the seconds for which an id counts: penstock configure %s --set dedupe_window=3600', lacking
                  );
    END IF;
END
$$;
