-- penstock.register_flow(flow_name, flow_type, sources, outputs, shape, checkpoint, action_names, action_classes,
--                        plugins)
--
-- Writes a flow and its actions to the registry. Shape and checkpoint are stored only while the flow has published
-- nothing. Afterwards the caller compares the stored ones with its own; a flow of another shape is not written.
--
-- Parameters: flow_type - DATA_SOURCE, TRANSFORM or DATA_SINK; sources, outputs - queues; shape - what the checkpoint
-- depends on; action_names, action_classes, plugins - the actions in order, as parallel arrays.
-- Returns: the stored shape and checkpoint, the query of that checkpoint, and whether the flow is paused.
-- Calls: require_names. Tables: flows, actions (insert, update, delete).
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.register_flow(
    flow_name text, flow_type text, sources text[], outputs text[], shape text, checkpoint text,
    action_names text[], action_classes text[], plugins text[]
)
RETURNS TABLE (kept_shape text, kept_checkpoint text, writer text, paused boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM penstock.require_names(flow_name);
    IF (cardinality(action_names) = ALL (ARRAY[cardinality(action_classes), cardinality(plugins)])) IS NOT TRUE THEN
        RAISE EXCEPTION 'action_names, action_classes and plugins must be of one length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT 1 FROM penstock.flows f WHERE f.name = register_flow.flow_name AND f.checkpoint = '') THEN
        RAISE EXCEPTION 'workers run actions of a flow "%"', register_flow.flow_name
            USING ERRCODE = 'duplicate_object', HINT = 'Give this flow another name.';
    END IF;
    IF EXISTS (
        SELECT 1 FROM penstock.flows f
        WHERE f.name = register_flow.flow_name AND f.writer IS NOT NULL AND f.shape <> register_flow.shape
    ) THEN
        RETURN QUERY
        SELECT f.shape, f.checkpoint, f.writer, f.paused FROM penstock.flows f WHERE f.name = register_flow.flow_name;
        RETURN;
    END IF;
    INSERT INTO penstock.flows AS f (name, flow_type, sources, outputs, shape, checkpoint)
    VALUES (
        register_flow.flow_name, register_flow.flow_type, register_flow.sources, register_flow.outputs,
        register_flow.shape, register_flow.checkpoint
    )
    ON CONFLICT (name) DO UPDATE SET
        flow_type = excluded.flow_type, sources = excluded.sources, outputs = excluded.outputs,
        shape = CASE WHEN f.writer IS NULL THEN excluded.shape ELSE f.shape END,
        checkpoint = CASE WHEN f.writer IS NULL THEN excluded.checkpoint ELSE f.checkpoint END,
        registered_at = clock_timestamp();
    DELETE FROM penstock.actions a
    WHERE a.flow_name = register_flow.flow_name AND a.action_name <> ALL (action_names);
    INSERT INTO penstock.actions (flow_name, action_name, position, flow_type, action_class, plugin)
    SELECT register_flow.flow_name, w.action_name, w.position, register_flow.flow_type, w.action_class, w.plugin
    FROM unnest(action_names, action_classes, plugins) WITH ORDINALITY
        w (action_name, action_class, plugin, position)
    ON CONFLICT (flow_name, action_name) DO UPDATE SET
        position = excluded.position, flow_type = excluded.flow_type, action_class = excluded.action_class,
        plugin = excluded.plugin, registered_at = clock_timestamp();
    RETURN QUERY
    SELECT f.shape, f.checkpoint, f.writer, f.paused FROM penstock.flows f WHERE f.name = register_flow.flow_name;
END
$$;
