-- penstock.register_actions(flow_names, action_names, flow_types, action_classes, plugins, queues, outputs)
--
-- Writes actions that workers run to the registry, and their flows. Other actions of the same flows stay: another worker
-- may run them. A flow is a TRANSFORM if one of its actions pushes something, otherwise what its first action is.
--
-- Parameters: parallel arrays, an element per action. flow_types - DATA_SOURCE, TRANSFORM or DATA_SINK; queues - where its
-- items come from; outputs - the queue that it pushes to, or null.
-- Returns: nothing; raises duplicate_object where a Spark flow has the name, and then nothing is written.
-- Calls: require_names, pause_actions. Tables: flows, actions (insert, update).
-- Granted to: consumer.
CREATE OR REPLACE FUNCTION penstock.register_actions(
    flow_names text[], action_names text[], flow_types text[], action_classes text[], plugins text[], queues text[],
    outputs text[]
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    given text;
BEGIN
    IF (cardinality(flow_names) = ALL (ARRAY[
        cardinality(action_names), cardinality(flow_types), cardinality(action_classes), cardinality(plugins),
        cardinality(queues), cardinality(outputs)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'all arrays must be of one length' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOREACH given IN ARRAY flow_names LOOP
        PERFORM penstock.require_names(given);
        IF EXISTS (SELECT 1 FROM penstock.flows f WHERE f.name = given AND f.checkpoint <> '') THEN
            RAISE EXCEPTION 'a Spark flow has the name "%"', given
                USING ERRCODE = 'duplicate_object', HINT = 'Give the actions another flow.';
        END IF;
    END LOOP;
    -- In order, so that workers which begin at the same time do not wait for each other in a circle.
    INSERT INTO penstock.flows AS f (name, flow_type, sources, outputs, shape, checkpoint)
    SELECT
        w.flow_name,
        CASE WHEN bool_or(w.output IS NOT NULL) THEN 'TRANSFORM' ELSE min(w.flow_type) END,
        array_agg(DISTINCT w.queue), coalesce(array_agg(DISTINCT w.output) FILTER (WHERE w.output IS NOT NULL), '{}'),
        'actions', ''
    FROM unnest(flow_names, flow_types, queues, outputs) w (flow_name, flow_type, queue, output)
    GROUP BY w.flow_name
    ORDER BY w.flow_name
    ON CONFLICT (name) DO UPDATE SET
        flow_type = CASE WHEN 'TRANSFORM' IN (f.flow_type, excluded.flow_type) THEN 'TRANSFORM' ELSE excluded.flow_type END,
        sources = ARRAY(SELECT DISTINCT e FROM unnest(f.sources || excluded.sources) e ORDER BY e),
        outputs = ARRAY(SELECT DISTINCT e FROM unnest(f.outputs || excluded.outputs) e ORDER BY e),
        registered_at = clock_timestamp();
    INSERT INTO penstock.actions (flow_name, action_name, position, flow_type, action_class, plugin, queue, output)
    SELECT w.flow_name, w.action_name, w.position, w.flow_type, w.action_class, w.plugin, w.queue, w.output
    FROM unnest(flow_names, action_names, flow_types, action_classes, plugins, queues, outputs) WITH ORDINALITY
        w (flow_name, action_name, flow_type, action_class, plugin, queue, output, position)
    ORDER BY w.flow_name, w.action_name
    ON CONFLICT (flow_name, action_name) DO UPDATE SET
        position = excluded.position, flow_type = excluded.flow_type, action_class = excluded.action_class,
        plugin = excluded.plugin, queue = excluded.queue, output = excluded.output,
        registered_at = clock_timestamp();
    -- An action may be new in a flow that is paused. Groups that are created from now on look for themselves.
    PERFORM penstock.pause_actions(f.name) FROM penstock.flows f WHERE f.name = ANY (flow_names) AND f.paused;
END
$$;
