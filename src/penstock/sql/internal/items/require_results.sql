-- penstock.require_results(claims, result_claims, result_offsets, result_states, keep_fors)
--
-- Raises an error unless the results of settle_items are of its claims, and say what came of an item and how long to keep it.
--
-- Parameters: claims - how many claims there are; the others as in settle_items.
-- Returns: nothing; raises invalid_parameter_value.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.require_results(
    claims integer, result_claims integer[], result_offsets bigint[], result_states text[], keep_fors float8[]
)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM unnest(result_claims, result_offsets, result_states, keep_fors) r (claim, message_offset, state, keep_for)
        WHERE (
            r.claim BETWEEN 1 AND claims AND r.message_offset >= 0 AND r.keep_for > 0 AND r.keep_for <= 3155760000
            AND r.state IN ('returned', 'returned bytes', 'raised', 'discarded', 'cancelled')
        ) IS NOT TRUE
    ) THEN
        RAISE EXCEPTION 'a result names a claim and an offset, is returned, returned bytes, raised, discarded or cancelled, and is kept for more than 0 and at most 3155760000 seconds'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;
