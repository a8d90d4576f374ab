-- penstock.trim_consumers()
--
-- Deletes consumers that were not seen for a day: each process has an id of its own, and never comes back.
--
-- Parameters: none.
-- Returns: how many.
-- Calls: policy_clock. Tables: consumers (delete), consumer_health (read).
CREATE OR REPLACE FUNCTION penstock.trim_consumers()
RETURNS bigint
LANGUAGE sql
AS $$
    WITH deleted AS (
        DELETE FROM penstock.consumers c
        WHERE coalesce(
            (SELECT h.last_seen FROM penstock.consumer_health h WHERE h.consumer_id = c.consumer_id), c.created_at
        ) < penstock.policy_clock() - interval '1 day'
        RETURNING 1
    )
    SELECT count(*) FROM deleted
$$;
