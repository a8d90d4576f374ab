"""Queues and partitions: describe, create, configure, pause, purge, delete."""

from typing import Annotated, Any

import msgspec

from penstock.broker.infos import PartitionInfo, QueueInfo
from penstock.broker.operations.log import (
    ConfigurePartition,
    ConfigureQueue,
    CreatePartition,
    CreateQueue,
    ListPartitions,
    ListQueues,
)
from penstock.broker.places import Place
from penstock.errors import AlreadyExists, NotFound
from penstock.gateway.call import Call, Reply
from penstock.gateway.pages import AfterName, Page, page_by_name, page_of

Priority = Annotated[int, msgspec.Meta(ge=-32768, le=32767)]


class QueueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a queue. What is null, or left out of a PUT, has its default, which is no description."""

    settings: dict[str, Any] = {}
    description: str | msgspec.UnsetType | None = msgspec.UNSET


class PartitionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a partition."""

    priority: Priority = 0


class Changed(msgspec.Struct, frozen=True):
    """Whether that changed anything."""

    changed: bool


class Dropped(msgspec.Struct, frozen=True):
    """How many messages went."""

    messages: int


async def list_queues(call: Call) -> Page[QueueInfo]:
    """Describe all queues, in the order of their names."""
    found = (await call.sight()).rows(await call.gateway.client.queues())
    return page_by_name(found, call.query, lambda queue: queue.name)


async def get_queue(call: Call) -> QueueInfo:
    """Describe one queue."""
    return await call.gateway.client.describe(call.path["queue"])


async def put_queue(call: Call) -> Reply:
    """Create a queue, or replace all of its settings; with `If-None-Match: *` it only creates."""
    queue, given = call.path["queue"], call.body
    try:
        await call.gateway.client.run(CreateQueue(queue, _set(given.settings), given.description or None))
        return Reply(await get_queue(call), 201)
    except AlreadyExists:
        if call.only_creates:
            raise
        known = await get_queue(call)
    changes = {**dict.fromkeys(known.config), **given.settings}
    await call.gateway.client.configure(queue, description=given.description or "", **changes)
    return Reply(await get_queue(call))


async def patch_queue(call: Call) -> QueueInfo:
    """Change some settings of a queue; null sets one back to its default."""
    # A PATCH changes what is there: one that makes a queue is a PUT.
    await get_queue(call)
    given = call.body
    description = None if given.description is msgspec.UNSET else given.description or ""
    await call.gateway.client.run(ConfigureQueue(call.path["queue"], given.settings, description))
    return await get_queue(call)


async def delete_queue(call: Call) -> Dropped:
    """Delete a queue with all that belongs to it."""
    return Dropped(await call.gateway.client.delete(call.path["queue"]))


async def purge_queue(call: Call) -> Dropped:
    """Drop all messages of a queue; offsets go on where they were."""
    return Dropped(await call.gateway.client.purge(call.path["queue"]))


async def pause_queue(call: Call) -> Changed:
    """Refuse pushes to a queue until it is resumed."""
    return Changed(await call.gateway.client.pause_queue(call.path["queue"]))


async def resume_queue(call: Call) -> Changed:
    """Take pushes to a paused queue again."""
    return Changed(await call.gateway.client.resume_queue(call.path["queue"]))


async def list_partitions(call: Call) -> Page[PartitionInfo]:
    """Describe the partitions of a queue, in the order of their names."""
    wanted: AfterName = call.query
    found = await call.gateway.client.run(
        ListPartitions(call.path["queue"], None, wanted.after or None, wanted.limit + 1)
    )
    return page_of(found, wanted.limit, lambda partition: partition.name)


async def get_partition(call: Call) -> PartitionInfo:
    """Describe one partition."""
    found = await call.gateway.client.run(ListPartitions(call.path["queue"], call.path["partition"]))
    if not found:
        raise NotFound(f"there is no partition {call.path['partition']!r} in queue {call.path['queue']!r}")
    return found[0]


async def put_partition(call: Call) -> Reply:
    """Create a partition, or replace its settings; with `If-None-Match: *` it only creates."""
    place = Place(call.path["queue"], call.path["partition"])
    try:
        await call.gateway.client.run(CreatePartition(place, call.body.priority))
        return Reply(await get_partition(call), 201)
    except AlreadyExists:
        if call.only_creates:
            raise
        await call.gateway.client.run(ConfigurePartition(place, call.body.priority))
    return Reply(await get_partition(call))


async def delete_partition(call: Call) -> Dropped:
    """Delete a partition with all that belongs to it."""
    return Dropped(await call.gateway.client.delete(call.path["queue"], partition=call.path["partition"]))


async def purge_partition(call: Call) -> Dropped:
    """Drop all messages of a partition; offsets go on where they were."""
    return Dropped(await call.gateway.client.purge(call.path["queue"], partition=call.path["partition"]))


async def queue_exists(call: Call, queue: str) -> None:
    """Refuse a queue that does not exist."""
    await call.gateway.client.run(ListQueues(queue))


def _set(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
