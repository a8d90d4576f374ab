-- The three roles of least privilege. Tables are never granted: the functions are the way in, and they check.
DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['penstock_producer', 'penstock_consumer', 'penstock_admin'] LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles r WHERE r.rolname = role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA penstock TO %I', role);
        EXECUTE format('GRANT SELECT ON penstock.migrations TO %I', role);
    END LOOP;
END
$$;

-- Producers push, see where to, and take back what is scheduled.
GRANT EXECUTE ON FUNCTION
    penstock.push, penstock.push_json, penstock.push_segment, penstock.push_segments, penstock.push_with_options,
    penstock.list_scheduled, penstock.cancel,
    penstock.begin_stage, penstock.stage_segments, penstock.publish_stages, penstock.abort_stages,
    penstock.queue_limits, penstock.published_batch, penstock.queue_spread, penstock.message_id, penstock.message_address, penstock.settings
TO penstock_producer;

-- Consumers read and consume, and see what there is.
GRANT EXECUTE ON FUNCTION
    penstock.pop, penstock.pop_claims, penstock.pop_batch, penstock.pop_claims_batch, penstock.has_pending_messages,
    penstock.ack, penstock.ack_claims, penstock.nack, penstock.nack_claim,
    penstock.renew, penstock.renew_claims, penstock.release_claim,
    penstock.sweep, penstock.create_group,
    penstock.lag, penstock.list_groups, penstock.list_claims, penstock.list_failing_timers, penstock.history,
    penstock.list_dead_letters, penstock.count_dead_letters,
    penstock.read, penstock.read_segments, penstock.get, penstock.get_segment,
    penstock.source_heads, penstock.source_places, penstock.deleted_ends, penstock.offsets_at, penstock.plan_ranges, penstock.read_ranges,
    penstock.spend_bytes, penstock.backlog_by_time, penstock.save_snapshot, penstock.snapshot_chain, penstock.next_snapshot, penstock.keep_snapshot, penstock.note_epoch,
    penstock.archived_floors, penstock.plan_archived, penstock.archived_at, penstock.list_archives,
    penstock.ensure_reader, penstock.advance_reader, penstock.reader_positions,
    penstock.stage_dead_letters, penstock.archived_letters, penstock.copy_letters, penstock.find_poison, penstock.list_flows, penstock.list_actions,
    penstock.paused_flows, penstock.epoch_ranges,
    penstock.list_queues, penstock.list_partitions, penstock.list_scheduled, penstock.message_id, penstock.message_address, penstock.settings
TO penstock_consumer;
-- Once given to consumers: a flow is published by whoever runs it, and that is an admin.
REVOKE EXECUTE ON FUNCTION penstock.publish_epoch FROM penstock_consumer;
-- The views call these, and a view's functions run as the reader; none of them sees a table.
GRANT EXECUTE ON FUNCTION penstock.unpack, penstock.int32_at, penstock.time_in_runs, penstock.run_of,
    penstock.decoded_key, penstock.decoded_headers TO penstock_consumer;
GRANT SELECT ON
    penstock.messages, penstock.partition_lookup, penstock.log_counter,
    penstock.partition_consumers, penstock.consumer_offsets
TO penstock_consumer;

-- Admins do both, and all that changes or removes.
DO $$
BEGIN
    -- Only whoever owns the roles may grant them, and once is enough.
    IF NOT pg_has_role('penstock_admin', 'penstock_producer', 'member')
       OR NOT pg_has_role('penstock_admin', 'penstock_consumer', 'member')
    THEN
        GRANT penstock_producer, penstock_consumer TO penstock_admin;
    END IF;
END
$$;
GRANT EXECUTE ON FUNCTION
    penstock.configure_database, penstock.create_queue, penstock.create_partition, penstock.configure_queue, penstock.configure_partition,
    penstock.list_stages, penstock.sweep_stages, penstock.purge, penstock.delete_queue, penstock.delete_partition, penstock.maintain,
    penstock.configure_group, penstock.delete_group, penstock.seek_partitions,
    penstock.register_flow, penstock.reset_flow, penstock.tell_flow, penstock.pause_flow, penstock.forget_flow,
    penstock.publish_epoch, penstock.add_poison,
    penstock.archive_ranges, penstock.begin_archive, penstock.record_archive, penstock.forget_archive, penstock.drop_archived,
    penstock.discard, penstock.redrive, penstock.verify, penstock.resync
TO penstock_admin;
