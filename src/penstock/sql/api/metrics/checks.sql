-- penstock.checks()
--
-- Returns the checks of `penstock status`: name, default threshold and duration, and what to do. Validation, defaults and
-- documentation are derived from it.
--
-- Returns: one row per check, in the order of the documentation.
-- Calls: nothing. Tables: none.
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.checks()
RETURNS TABLE (name text, threshold float8, duration float8, meaning text, advice text)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    VALUES
    ('breaker_open', 1::float8, 0::float8, 'the breaker of a group or consumer has opened so often in a row',
     'fix what fails (see the last error); it is tried again by itself, or at once with `penstock breakers reset`'),
    ('flow_failing', 1, 0, 'a flow is lost or has failed, or has failed so often in a row',
     'read its error with `penstock flows`, and restart it with `penstock run`'),
    ('schedule_stuck', 60, 0, 'a schedule fails, or nobody has pushed a slot that was due so many seconds ago',
     'read its error with `penstock schedule list`; schedules are fired by `penstock worker`, `maintain` and `up`'),
    ('workers_missing', 1, 60, 'messages wait and fewer than so many consumers of the group are there',
     'start consumers: `penstock worker`, or the program that calls process()'),
    ('dead_letters_waiting', 1, 0, 'a group has so many dead letters or more',
     'see why they died with `penstock dead-letters QUEUE`, then redrive or discard them'),
    ('workers_too_few', 1000, 600, 'what waits has grown by so many within the duration, although consumers succeed',
     'add consumers, make the handler faster, or limit pushes (push_rate_limit); pause the source if it cannot wait'),
    ('queue_growing', 1000, 600, 'the lag of a group has grown by so many within the duration',
     'see whether its consumers keep up: `penstock consumers`, `penstock metrics QUEUE`'),
    ('cold_growing', 10000, 720, 'what is not handed out has grown by so many within the duration',
     'consumers do not keep up: add some, or limit pushes'),
    ('cold_high', 75000, 0, 'more than so many messages are not handed out',
     'consumers do not keep up: add some, or make the handler faster'),
    ('oldest_too_old', 3600, 0, 'the oldest message has waited for more than so many seconds',
     'see what holds it up: `penstock claims`, `penstock history`, a paused group, a limit'),
    ('orphan_queue', 1, 3600, 'a queue has messages and fewer than so many groups, for the duration',
     'create a group that reads it, set retention_time, or delete it')
$$;
