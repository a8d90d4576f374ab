"""Look around, within stated bounds: queues in outline, partitions, where lag sits, messages by filter, and children.

Nothing here claims or changes anything. Every answer says how far it looked.
"""

import asyncio
from datetime import datetime
from typing import Annotated

import msgspec

from penstock.broker.browsing import FoundPartitions, LagCell, OutlinedQueue
from penstock.broker.messages import StoredMessage
from penstock.broker.operations.browsing import GetOutline, MapLag, SearchPartitions
from penstock.broker.operations.flows import ListActions
from penstock.broker.operations.log import GetSpread
from penstock.broker.operations.reading import Read
from penstock.broker.places import Place
from penstock.client.pushes import partition_for_key
from penstock.errors import InvalidInput, NotFound
from penstock.gateway.call import Call
from penstock.gateway.envelopes import envelope
from penstock.gateway.pages import Number
from penstock.gateway.routes.messages import found_message
from penstock.operations import filters
from penstock.operations.envelopes import Envelope

_PARENT = "penstock-parent"
# Of a queue without a partition: the newest messages of so many partitions, the newest of those that are looked at.
_NEWEST_OF = 20
_LOOKED_AT = 2000
_CHUNK = 500
_CHILDREN_LOOK = 2000
# Messages may be large: looking reads so many bytes, and an answer has so many of values, and at least one message.
_READ_BYTES = 32 << 20
_SHOWN_BYTES = 8 << 20

Few = Annotated[int, msgspec.Meta(ge=1, le=200)]


class PartitionQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which partitions, in which order."""

    group: str | None = None
    search: str | None = None
    sort: str = "name"
    after: str | None = None
    skip: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    limit: Few = 50


class MapQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose lag, in how many cells."""

    group: str
    cells: Annotated[int, msgspec.Meta(ge=1, le=500)] = 120


class MessageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages: those from an offset or a time on, or the newest; of a partition, a key's partition, or all.

    `before` goes back from an offset. `look` is how many messages may be looked at for those that match; where they are
    large it is fewer.
    """

    partition: str | None = None
    start: Number | None = None
    before: Number | None = None
    time: datetime | None = None
    key: str | None = None
    filter: str | None = None
    limit: Few = 50
    look: Annotated[int, msgspec.Meta(ge=1, le=20_000)] = 5000


class Browsed(msgspec.Struct, frozen=True):
    """Messages that match, and how far the search looked.

    Of a single partition, `older` and `newer` are the offsets where the next pages begin; None at the ends.
    """

    messages: list[Envelope]
    looked: int
    partitions: int
    partition: str | None = None
    floor: int | None = None
    head: int | None = None
    older: int | None = None
    newer: int | None = None


async def outline(call: Call) -> list[OutlinedQueue]:
    """List all queues and groups, without counting anything."""
    found = await call.gateway.client.run(GetOutline())
    return (await call.sight()).rows(found)


async def partitions(call: Call) -> FoundPartitions:
    """Find partitions by a part of their name, sorted by name, newest message or a group's lag."""
    wanted = call.query
    return await call.gateway.client.run(
        SearchPartitions(
            call.path["queue"], wanted.group, wanted.search, wanted.sort, wanted.after, wanted.skip, wanted.limit
        )
    )


async def lag_map(call: Call) -> list[LagCell]:
    """Say where the lag of a group sits."""
    return await call.gateway.client.run(MapLag(call.path["queue"], call.query.group, call.query.cells))


async def messages(call: Call) -> Browsed:
    """Find messages by a filter of their fields; it looks at so many messages at most, and claims nothing."""
    wanted, queue = call.query, call.path["queue"]
    partition = wanted.partition
    if partition is None and wanted.key is not None:
        spread = await call.gateway.client.run(GetSpread(queue))
        partition = partition_for_key(wanted.key, spread)
    chosen = filters.parse(wanted.filter, wanted.key)
    if partition is None:
        if wanted.start is not None or wanted.before is not None:
            raise InvalidInput("an offset is a place in a partition: give the partition, too")
        return await _newest(call, queue, wanted, chosen)
    return await _of_partition(call, queue, partition, wanted, chosen)


async def _of_partition(
    call: Call, queue: str, partition: str, wanted: MessageQuery, chosen: filters.Filter
) -> Browsed:
    client = call.gateway.client
    try:
        [place] = await client.partitions(queue, partition)
    except NotFound:
        if wanted.key is None:
            raise
        return Browsed([], 0, 0, partition)
    if wanted.start is not None and wanted.before is not None:
        raise InvalidInput("give start or before, not both")
    looked, room = 0, _READ_BYTES
    found: list[StoredMessage] = []
    if wanted.start is None and wanted.time is None:
        # Backwards from the newest, a chunk at a time.
        stop = min(wanted.before if wanted.before is not None else place.head, place.head)
        low = stop
        while low > place.floor and looked < wanted.look and len(found) < wanted.limit and room > 0:
            page = await _back(call, Place(queue, partition), place.floor, low, min(_CHUNK, wanted.look - looked), room)
            if not page:
                break
            low = page[0].offset
            looked, room = looked + len(page), room - _bytes(page)
            found += [each for each in reversed(page) if chosen.matches(each)]
            await asyncio.sleep(0)
        shown = _shown(found, wanted.limit)
        if len(found) > len(shown):
            low = shown[-1].offset
        newer = stop if stop < place.head else None
        older = low if low > place.floor else None
    else:
        at = max(place.floor, wanted.start or 0)
        start, first = None, wanted.time
        while looked < wanted.look and len(found) < wanted.limit and room > 0:
            count = min(_CHUNK, wanted.look - looked)
            page = await _forth(call, Place(queue, partition), at, first, count, room)
            if not page:
                break
            start = page[0].offset if start is None else start
            first, at = None, page[-1].offset + 1
            looked, room = looked + len(page), room - _bytes(page)
            found += [each for each in page if chosen.matches(each)]
            await asyncio.sleep(0)
        shown = _shown(found, wanted.limit)
        if len(found) > len(shown):
            at = shown[-1].offset + 1
        older = start if start is not None and start > place.floor else None
        newer = at if at < place.head else None
    return Browsed([envelope(each) for each in shown], looked, 1, partition, place.floor, place.head, older, newer)


async def _newest(call: Call, queue: str, wanted: MessageQuery, chosen: filters.Filter) -> Browsed:
    client = call.gateway.client
    page = await client.run(SearchPartitions(queue, sort="newest", limit=_NEWEST_OF, max_look=_LOOKED_AT))
    found: list[StoredMessage] = []
    looked = 0
    each_looks = max(wanted.limit, wanted.look // max(1, len(page.partitions)))
    room = _READ_BYTES // max(1, len(page.partitions))
    for place in page.partitions:
        if wanted.time is None:
            read = await _back(call, Place(queue, place.name), place.floor, place.head, each_looks, room)
        else:
            read = await _forth(call, Place(queue, place.name), 0, wanted.time, each_looks, room)
        looked += len(read)
        found += [each for each in read if chosen.matches(each)]
        await asyncio.sleep(0)
    found.sort(key=lambda each: (each.timestamp, each.partition_id, each.offset), reverse=wanted.time is None)
    return Browsed([envelope(each) for each in _shown(found, wanted.limit)], looked, page.looked)


async def _back(call: Call, place: Place, floor: int, stop: int, count: int, room: int) -> list[StoredMessage]:
    """Read the messages before an offset, so many or as many as fit."""
    while True:
        start = max(floor, stop - count)
        page = await call.gateway.client.run(Read(place, start, stop, max_bytes=room))
        if page.next_offset is None or count == 1:
            return page.unpack(place)
        # It was cut, and what is missing is the end, which is wanted.
        count = max(1, min(count, page.next_offset - start) // 2)


async def _forth(
    call: Call, place: Place, start: int, time: datetime | None, count: int, room: int
) -> list[StoredMessage]:
    """Read the messages from an offset or a time on, so many or as many as fit."""
    stop = start + count if time is None else None
    page = await call.gateway.client.run(Read(place, start, stop, time, max_bytes=room))
    return page.unpack(place)[:count]


def _bytes(messages: list[StoredMessage]) -> int:
    return sum(len(each.value or b"") for each in messages)


def _shown(found: list[StoredMessage], limit: int) -> list[StoredMessage]:
    """Return the first of them that an answer has room for, and at least one."""
    size = 0
    for count, each in enumerate(found[:limit]):
        size += len(each.value or b"")
        if size > _SHOWN_BYTES and count:
            return found[:count]
    return found[:limit]


async def children(call: Call) -> Browsed:
    """Find what the handlers of a message pushed because of it, in the queues that its actions push to."""
    client = call.gateway.client
    parent = await found_message(call)
    wanted = str(parent.id)
    outputs = {each.output for each in await client.run(ListActions()) if each.queue == parent.queue and each.output}
    sight = await call.sight()
    found: list[StoredMessage] = []
    looked = visited = 0
    for queue in sorted(outputs):
        if not sight.sees(queue):
            continue
        try:
            page = await client.run(SearchPartitions(queue, sort="newest", limit=_NEWEST_OF, max_look=_LOOKED_AT))
        except NotFound:
            continue
        # Outputs go to the partition of the same name unless the handler says otherwise.
        names = {place.name for place in page.partitions if (place.newest_at or parent.timestamp) >= parent.timestamp}
        names |= {parent.partition}
        for name in sorted(names, key=lambda name: (name != parent.partition, name)):
            try:
                count, room = max(1, _CHILDREN_LOOK // len(names)), _READ_BYTES // len(names)
                read = await _forth(call, Place(queue, name), 0, parent.timestamp, count, room)
            except NotFound:
                continue
            visited, looked = visited + 1, looked + len(read)
            found += [each for each in read if (each.headers or {}).get(_PARENT) == wanted]
    return Browsed([envelope(each) for each in found[:200]], looked, visited)
