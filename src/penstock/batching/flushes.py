"""What one flight of a batcher does: many pushes, pops or settlings as one call, and the answer taken apart again."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from penstock.batching.batcher import Alone
from penstock.broker.arguments import Name, as_text
from penstock.broker.messages import Message, PushResult
from penstock.broker.packing import Segment, pack, pack_values
from penstock.broker.producers import Producer
from penstock.consuming.polling import ReadyCursor
from penstock.errors import PenstockError
from penstock.postgres.async_database import AsyncDatabase
from penstock.postgres.statements import batch_calls, group_calls
from penstock.postgres.statements.batch_calls import PopRequest
from penstock.postgres.statements.calls import Place
from penstock.postgres.statements.group_calls import Claim, Settling, Sweep

# A push of so many messages is packed by itself: joining it to others would gain nothing.
_LARGE = 100
# What one flight carries at most, in bytes of messages and in calls.
_FLIGHT_BYTES = 8 << 20
_FLIGHT_CALLS = 1000


class Items:
    """Messages of one partition in order: values alone, messages with keys or headers, or packed segments."""

    __slots__ = ("count", "messages", "packed", "values")

    def __init__(
        self,
        values: list[bytes | None] | None = None,
        messages: list[Message] | None = None,
        packed: Sequence[Segment] = (),
    ) -> None:
        self.values = values or []
        self.messages = messages or []
        self.packed = packed
        self.count = len(self.values) or len(self.messages) or sum(segment.count for segment in packed)

    @property
    def bytes(self) -> int:
        """How much it is. A message counts for more than its bytes, so that a flight of small ones has an end too."""
        if self.values:
            size = sum(map(len, filter(None, self.values)))
        elif self.messages:
            size = sum(len(message.value or b"") for message in self.messages)
        else:
            size = sum(len(segment.body) for segment in self.packed)
        return 200 * self.count + size

    def segments(self) -> Sequence[Segment]:
        """Pack it."""
        return self.packed or (pack(self.messages) if self.messages else pack_values(self.values, None, None))


class Parcel:
    """What one caller pushes."""

    __slots__ = ("places",)

    def __init__(self, places: Mapping[Place, Items]) -> None:
        self.places = places

    @classmethod
    def plain(
        cls, place: Place, values: list[bytes | None], key: Name | None, headers: Mapping[str, str] | None
    ) -> "Parcel":
        """Make one of values that share their partition, key and headers."""
        key = as_text(key)
        if len(values) >= _LARGE:
            return cls({place: Items(packed=pack_values(values, key, headers))})
        if key is None and headers is None:
            return cls({place: Items(values)})
        return cls({place: Items(messages=[Message(value, key, headers) for value in values])})

    @classmethod
    def of(cls, placed: Mapping[Place, list[Message]]) -> "Parcel":
        """Make one of messages by partition."""
        return cls({place: Items(messages=messages) for place, messages in placed.items()})

    def pack(self) -> list[tuple[Place, Segment]]:
        """Pack it by itself."""
        return [(place, segment) for place, items in self.places.items() for segment in items.segments()]


class Pushes:
    """Pushes that come at the same time: one transaction, and one segment for each partition where that is enough."""

    exclusive = False
    direct = True
    max_weight = _FLIGHT_BYTES

    def __init__(self, database: AsyncDatabase, producer: Producer) -> None:
        self._database = database
        self._producer = producer

    def keys(self, call: Parcel) -> Iterable[Hashable]:
        """Return the partitions: each has a lock that somebody may hold."""
        return call.places

    def weight(self, call: Parcel) -> int:
        """Return the bytes."""
        return sum(items.bytes for items in call.places.values())

    async def run(self, calls: Sequence[Parcel], hurried: bool) -> list[list[PushResult] | BaseException]:
        """Push; a list of results for each caller."""
        if len(calls) == 1:
            alone = await self._database.run(batch_calls.push(calls[0].pack(), self._producer.stamp(), hurried))
            return [alone]
        joined: dict[Place, list[Items]] = {}
        for parcel in calls:
            for place, items in parcel.places.items():
                _join(joined.setdefault(place, []), items)
        segments = [
            (place, segment) for place, found in joined.items() for items in found for segment in items.segments()
        ]
        begun = {
            Place(result.queue, result.partition): result
            for result in await self._database.run(batch_calls.push(segments, self._producer.stamp(), hurried))
        }
        taken = dict.fromkeys(begun, 0)
        answers: list[list[PushResult] | BaseException] = []
        for parcel in calls:
            results = []
            for place, items in parcel.places.items():
                whole, before = begun[place], taken[place]
                taken[place] = before + items.count
                results.append(
                    PushResult(
                        place.queue,
                        place.partition,
                        whole.partition_id,
                        whole.first_offset + before,
                        items.count,
                        whole.timestamp,
                    )
                )
            answers.append(results)
        return answers

    async def abandon(self, answer: list[PushResult]) -> None:
        """Leave it as it is: what is pushed is pushed."""


class Pops:
    """Pops that come at the same time."""

    exclusive = False
    direct = False
    max_weight = _FLIGHT_CALLS

    # From how many on the batch's function is called.
    several = 2

    def __init__(self, database: AsyncDatabase, ready: Callable[[str, str], ReadyCursor]) -> None:
        self._database = database
        self._ready_cursor = ready

    def keys(self, call: PopRequest) -> Iterable[Hashable]:
        """Return nothing: a pop waits for nobody."""
        return ()

    def weight(self, call: PopRequest) -> int:
        """Count calls."""
        return 1

    async def run(self, calls: Sequence[PopRequest], hurried: bool) -> list[list[Claim] | BaseException]:
        """Pop; the claims of each caller."""
        if len(calls) < self.several:
            return [await self._alone(calls[0])]
        cursors = {(call.queue, call.group): self._ready_cursor(call.queue, call.group) for call in calls}
        lows = {names: ready.lows() for names, ready in cursors.items()}
        found = await self._database.run(batch_calls.pop(calls, [lows[call.queue, call.group] for call in calls]))
        if len(calls) == 1 and found[0] is None:
            return [await self._alone(calls[0])]
        return [
            Alone((call.queue, call.group)) if each is None else each for call, each in zip(calls, found, strict=True)
        ]

    async def _alone(self, call: PopRequest) -> list[Claim] | BaseException:
        return await self._database.run(call.alone(self._ready_cursor(call.queue, call.group).lows()))

    async def abandon(self, answer: list[Claim]) -> None:
        """Give back what nobody is there to handle."""
        for claim in answer:
            if claim.lease_id is not None:
                try:
                    await self._database.run(group_calls.release(claim.group_id, claim.partition_id, claim.lease_id))
                except PenstockError:
                    # Then its lease expires.
                    continue


class Settlings:
    """Acknowledgements, or renewals, that come at the same time and differ only in their claims."""

    # Two of one claim follow one another.
    exclusive = True
    direct = True
    max_weight = _FLIGHT_CALLS

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database

    def keys(self, call: Settling) -> Iterable[Hashable]:
        """Return the leases."""
        leases: Iterable[Hashable] = call.parameters[2]
        return leases

    def weight(self, call: Settling) -> int:
        """Count claims."""
        return len(call.parameters[0])

    async def run(self, calls: Sequence[Settling], hurried: bool) -> list[BaseException | None]:
        """Settle."""
        return await self._database.run(batch_calls.settle(calls, hurried and len(calls) > 1))

    async def abandon(self, answer: None) -> None:
        """Leave it as it is: what is settled is settled."""


class Sweeps:
    """Sweeps that are asked for at the same time: one serves all."""

    exclusive = False
    direct = False
    max_weight = _FLIGHT_CALLS

    def __init__(self, sweep: Callable[[], Any]) -> None:
        self._sweep = sweep

    def keys(self, call: None) -> Iterable[Hashable]:
        """Return nothing: a sweep waits for nobody."""
        return ()

    def weight(self, call: None) -> int:
        """Take any number."""
        return 0

    async def run(self, calls: Sequence[None], hurried: bool) -> list[Sweep | BaseException | None]:
        """Sweep once."""
        return [await self._sweep()] * len(calls)

    async def abandon(self, answer: Sweep | None) -> None:
        """Leave it as it is."""


def _join(found: list[Items], items: Items) -> None:
    """Add to what is pushed to a partition, in one piece with what came before where both are alike."""
    last = found[-1] if found else None
    if last is not None and last.values and items.values:
        last.values += items.values
    elif last is not None and last.messages and items.messages:
        last.messages += items.messages
    else:
        # A copy, since others are added to it; the caller's own stays as it is.
        found.append(Items(list(items.values), list(items.messages), items.packed))
