"""The statements of queues and partitions."""

from typing import Any

import msgspec

from penstock.broker.infos import MaintenanceResult, PartitionInfo, QueueInfo
from penstock.broker.operations.log import (
    ConfigureDatabase,
    ConfigurePartition,
    ConfigureQueue,
    CreatePartition,
    CreateQueue,
    Delete,
    GetSpread,
    ListPartitions,
    ListQueues,
    Maintain,
    PauseQueue,
    Purge,
)
from penstock.postgres.statements.call import Call, json_text, nothing, scalar, statement


@statement(CreateQueue)
def create_queue(wanted: CreateQueue) -> Call[None]:
    return Call(
        "SELECT penstock.create_queue(%s::text, %s::jsonb, %s::text)",
        (wanted.queue, json_text(wanted.config), wanted.description),
        nothing,
    )


@statement(CreatePartition)
def create_partition(wanted: CreatePartition) -> Call[None]:
    return Call(
        "SELECT penstock.create_partition(%s::text, %s::text, %s::integer)", (*wanted.place, wanted.priority), nothing
    )


@statement(ConfigureQueue)
def configure_queue(wanted: ConfigureQueue) -> Call[dict[str, Any]]:
    return Call(
        "SELECT penstock.configure_queue(%s::text, %s::jsonb, %s::text)::text",
        (wanted.queue, json_text(wanted.changes), wanted.description),
        lambda rows: msgspec.json.decode(rows[0][0], type=dict[str, Any]),
    )


@statement(PauseQueue)
def pause_queue(wanted: PauseQueue) -> Call[bool]:
    return Call("SELECT penstock.pause_queue(%s::text, %s::boolean)", (wanted.queue, wanted.paused), scalar)


@statement(ConfigureDatabase)
def configure_database(wanted: ConfigureDatabase) -> Call[dict[str, Any]]:
    return Call(
        "SELECT penstock.configure_database(%s::boolean)::text",
        (wanted.create_on_first_use,),
        lambda rows: msgspec.json.decode(rows[0][0], type=dict[str, Any]),
    )


@statement(ConfigurePartition)
def configure_partition(wanted: ConfigurePartition) -> Call[None]:
    return Call(
        "SELECT penstock.configure_partition(%s::text, %s::text, %s::integer)",
        (*wanted.place, wanted.priority),
        nothing,
    )


@statement(ListQueues)
def list_queues(wanted: ListQueues) -> Call[list[QueueInfo]]:
    return Call(
        "SELECT name, description, created_at, config::text, settings::text, partitions, messages, dropped, newest_at "
        "FROM penstock.list_queues(%s::text)",
        (wanted.queue,),
        lambda rows: [QueueInfo(*row[:3], *map(msgspec.json.decode, row[3:5]), *row[5:]) for row in rows],
    )


@statement(ListPartitions)
def list_partitions(wanted: ListPartitions) -> Call[list[PartitionInfo]]:
    return Call(
        "SELECT * FROM penstock.list_partitions(%s::text, %s::text, %s::text, %s::integer)",
        (wanted.queue, wanted.partition, wanted.after, wanted.limit),
        lambda rows: [PartitionInfo(*row) for row in rows],
    )


@statement(GetSpread)
def get_spread(wanted: GetSpread) -> Call[int]:
    return Call("SELECT penstock.queue_spread(%s::text)", (wanted.queue,), scalar)


@statement(Purge)
def purge(wanted: Purge) -> Call[int]:
    return Call("SELECT penstock.purge(%s::text, %s::text)", (wanted.queue, wanted.partition), scalar)


@statement(Delete)
def delete(wanted: Delete) -> Call[int]:
    if wanted.partition is None:
        return Call("SELECT penstock.delete_queue(%s::text)", (wanted.queue,), scalar)
    return Call("SELECT penstock.delete_partition(%s::text, %s::text)", (wanted.queue, wanted.partition), scalar)


@statement(Maintain)
def maintain(wanted: Maintain) -> Call[MaintenanceResult | None]:
    return Call(
        "SELECT * FROM penstock.maintain(%s::bigint, %s::integer, %s::integer)",
        (wanted.after, wanted.partitions, wanted.min_segments),
        lambda rows: MaintenanceResult(*rows[0]) if rows else None,
    )
