"""How operations of one type are run as one, and the reply taken apart again: pushes, pops, checks, acks, and so on."""

from collections.abc import Hashable, Iterable, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from penstock.batching.lane import Alone
from penstock.broker.async_transport import AsyncTransport
from penstock.broker.claims import Claim
from penstock.broker.hints import Hint
from penstock.broker.infos import SweepResult
from penstock.broker.messages import PushResult
from penstock.broker.operations.claiming import (
    Ack,
    HasPending,
    HasPendingMany,
    Pop,
    PopMany,
    Release,
    Renew,
    Sweep,
)
from penstock.broker.operations.pushing import Push
from penstock.broker.packing import Segment, join
from penstock.broker.places import Place
from penstock.broker.pushing import Producer, PushBatch
from penstock.errors import PenstockError

Locking = TypeVar("Locking", Push, Ack, Renew)

# What one batch carries at most, in bytes of messages and in operations.
_MOST_BYTES = 8 << 20
_MOST_OPERATIONS = 1000
# A message counts for more than its bytes, so that a batch of small ones has an end too.
_MESSAGE_BYTES = 200


class PushJoiner:
    """Joins plain pushes: one transaction, and one segment for each partition where that is enough."""

    exclusive = False
    direct = True
    max_weight = _MOST_BYTES

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        # A joint push is another push than each of those that it is made of.
        self._producer = Producer()

    def keys(self, operation: Push) -> Iterable[Hashable]:
        """Return the partitions: each has a lock that somebody may hold."""
        return [batch.place for batch in operation.batches]

    def weight(self, operation: Push) -> int:
        """Return the bytes."""
        size = 0
        for batch in operation.batches:
            for segment in batch.segments:
                size += _MESSAGE_BYTES * segment.count + len(segment.body)
        return size

    async def run(
        self, operations: Sequence[Push], lock_timeout: float | None
    ) -> Sequence[list[PushResult] | BaseException]:
        """Push; the results of each caller."""
        if len(operations) == 1:
            only = _with_timeout(operations[0], lock_timeout)
            if only.stamp is None:
                only = msgspec.structs.replace(only, stamp=self._producer.stamp())
            return [await self._transport.run(only)]
        segments: dict[Place, list[Segment]] = {}
        for operation in operations:
            for batch in operation.batches:
                segments.setdefault(batch.place, []).extend(batch.segments)
        joint = Push(
            [PushBatch(place, join(found)) for place, found in segments.items()],
            self._producer.stamp(),
            lock_timeout,
            _joint_hint([operation.hint for operation in operations]),
        )
        stored = await self._transport.run(joint)
        results = dict(zip(segments, stored, strict=True))
        firsts = {place: result.first_offset for place, result in results.items()}
        replies = []
        for operation in operations:
            parts = []
            for batch in operation.batches:
                place, count = batch.place, batch.count
                whole, first = results[place], firsts[place]
                firsts[place] = first + count
                parts.append(PushResult(*place, whole.partition_id, first, count, whole.timestamp))
            replies.append(parts)
        return replies

    async def abandon(self, reply: list[PushResult]) -> None:
        """Leave it as it is: what is pushed is pushed."""


class PopJoiner:
    """Joins pops."""

    exclusive = False
    direct = False
    max_weight = _MOST_OPERATIONS

    def __init__(self, transport: AsyncTransport, several: int) -> None:
        self._transport = transport
        self._several = several

    def keys(self, operation: Pop) -> Iterable[Hashable]:
        """Return nothing: a pop waits for nobody."""
        return ()

    def weight(self, operation: Pop) -> int:
        """Count operations."""
        return 1

    async def run(self, operations: Sequence[Pop], lock_timeout: float | None) -> Sequence[list[Claim] | BaseException]:
        """Pop; the claims of each caller."""
        if len(operations) < self._several:
            return [await self._transport.run(operations[0])]
        found = await self._transport.run(PopMany(_from_one_place(operations)))
        if len(operations) == 1 and found[0] is None:
            return [await self._transport.run(operations[0])]
        return [
            Alone((pop.queue, pop.group)) if each is None else each for pop, each in zip(operations, found, strict=True)
        ]

    async def abandon(self, reply: list[Claim]) -> None:
        """Give back what nobody is there to handle."""
        for claim in reply:
            if claim.lease_id is not None:
                try:
                    await self._transport.run(Release(claim.lease))
                except PenstockError:
                    # Then its lease expires.
                    continue


class CheckJoiner:
    """Joins the question whether anything is pending: all groups that somebody waits for, in one call."""

    exclusive = False
    direct = False
    max_weight = _MOST_OPERATIONS

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def keys(self, operation: HasPending) -> Iterable[Hashable]:
        """Return nothing: a question waits for nobody."""
        return ()

    def weight(self, operation: HasPending) -> int:
        """Count operations."""
        return 1

    async def run(self, operations: Sequence[HasPending], lock_timeout: float | None) -> Sequence[bool | BaseException]:
        """Ask; the answer for each. The pop that follows an error says what is wrong, so it is not tried again."""
        if len(operations) == 1:
            return [await self._transport.run(operations[0], retry=False)]
        return await self._transport.run(HasPendingMany(operations), retry=False)

    async def abandon(self, reply: bool) -> None:
        """Leave it as it is."""


class AckJoiner:
    """Joins acknowledgements."""

    # Two of one claim follow one another.
    exclusive = True
    direct = True
    max_weight = _MOST_OPERATIONS

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def keys(self, operation: Ack) -> Iterable[Hashable]:
        """Return the leases."""
        return [each.lease_id for each in operation.ranges]

    def weight(self, operation: Ack) -> int:
        """Count claims."""
        return len(operation.ranges)

    async def run(self, operations: Sequence[Ack], lock_timeout: float | None) -> Sequence[list[bool] | BaseException]:
        """Acknowledge; for each caller, which claims are done."""
        if len(operations) == 1:
            return [await self._transport.run(_with_timeout(operations[0], lock_timeout))]
        done = await self._transport.run(
            Ack([each for op in operations for each in op.ranges], lock_timeout, any(op.durable for op in operations))
        )
        replies = []
        begin = 0
        for operation in operations:
            end = begin + len(operation.ranges)
            replies.append(done[begin:end])
            begin = end
        return replies

    async def abandon(self, reply: list[bool]) -> None:
        """Leave it as it is: what is settled is settled."""


class RenewJoiner:
    """Joins renewals by the same time."""

    exclusive = True
    direct = True
    max_weight = _MOST_OPERATIONS

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def keys(self, operation: Renew) -> Iterable[Hashable]:
        """Return the leases."""
        return [each.lease_id for each in operation.leases]

    def weight(self, operation: Renew) -> int:
        """Count claims."""
        return len(operation.leases)

    async def run(
        self, operations: Sequence[Renew], lock_timeout: float | None
    ) -> Sequence[list[datetime | None] | BaseException]:
        """Renew; for each caller, the deadlines of its claims."""
        if len(operations) == 1:
            return [await self._transport.run(_with_timeout(operations[0], lock_timeout))]
        leases = [each for operation in operations for each in operation.leases]
        until = await self._transport.run(
            Renew(leases, operations[0].lease, lock_timeout, any(op.durable for op in operations))
        )
        replies = []
        begin = 0
        for operation in operations:
            end = begin + len(operation.leases)
            replies.append(until[begin:end])
            begin = end
        return replies

    async def abandon(self, reply: list[datetime | None]) -> None:
        """Leave it as it is."""


class SweepJoiner:
    """Joins sweeps: one serves all."""

    exclusive = False
    direct = False
    max_weight = _MOST_OPERATIONS

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def keys(self, operation: Sweep) -> Iterable[Hashable]:
        """Return nothing: a sweep waits for nobody."""
        return ()

    def weight(self, operation: Sweep) -> int:
        """Take any number."""
        return 0

    async def run(
        self, operations: Sequence[Sweep], lock_timeout: float | None
    ) -> Sequence[SweepResult | BaseException | None]:
        """Sweep once, from the earliest moment that anybody wants."""
        moments = [operation.since for operation in operations]
        since = None if None in moments else min(moment for moment in moments if moment is not None)
        most = max(operation.max_timers for operation in operations)
        durable = any(operation.durable for operation in operations)
        return [await self._transport.run(Sweep(since, most, durable))] * len(operations)

    async def abandon(self, reply: SweepResult | None) -> None:
        """Leave it as it is."""


def _from_one_place(pops: Sequence[Pop]) -> Sequence[Pop]:
    """Return pops of which those of one group begin at the same place of the ready list: they share one walk along it.

    The newest says where; one that begins at the front takes the others along.
    """
    begins: dict[tuple[str, str], Sequence[int] | None] = {}
    for pop in pops:
        group = pop.queue, pop.group
        begins[group] = None if pop.ready_from is None or begins.get(group, ()) is None else pop.ready_from
    return [
        pop
        if pop.ready_from == begins[pop.queue, pop.group]
        else msgspec.structs.replace(pop, ready_from=begins[pop.queue, pop.group])
        for pop in pops
    ]


def _with_timeout(operation: Locking, lock_timeout: float | None) -> Locking:
    return operation if lock_timeout is None else msgspec.structs.replace(operation, lock_timeout=lock_timeout)


def _joint_hint(hints: Sequence[Hint | None]) -> Hint | None:
    """Return one hint for all; they have the same sender, because one client joins them."""
    given = [hint for hint in hints if hint is not None]
    if not given:
        return None
    return Hint(given[0].sender, list({queue: None for hint in given for queue in hint.queues}))
