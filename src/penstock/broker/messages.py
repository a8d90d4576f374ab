"""What goes in and what comes out: messages and the results of pushing them."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from penstock.broker.arguments import Name
from penstock.broker.ids import message_id, milliseconds
from penstock.errors import InvalidInput, PenstockError


# msgspec structs, because a push or a read makes one object per message and nothing makes them faster.
class Message(msgspec.Struct, frozen=True):
    """A message to push.

    Bytes are stored as they are, None as a null value (Kafka's tombstone), and any other value as JSON. A key without a
    partition picks the partition, so that messages of one key stay in order. With a `dedupe_id` it is stored once
    within the queue's `dedupe_window`; with a `unique_key`, as long as the push says. Without a partition and a key,
    either picks the partition.
    """

    value: Any
    key: Name | None = None
    headers: Mapping[str, str] | None = None
    partition: Name | None = None
    dedupe_id: str | None = None
    unique_key: str | None = None


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as it lies in the log; `attempt` counts its deliveries where a group delivers it."""

    value: bytes | None
    offset: int
    timestamp: datetime
    queue: str
    partition: str
    partition_id: int
    key: str | None = None
    headers: dict[str, str] | None = None
    attempt: int = 0

    @property
    def id(self) -> UUID:
        """The message's id, which is also its address: `client.get(id)` finds it."""
        return message_id(self.partition_id, self.offset, milliseconds(self.timestamp))

    def json(self) -> Any:
        """Return the value decoded from JSON; None where it is null."""
        if self.value is None:
            return None
        try:
            return msgspec.json.decode(self.value)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(
                f"message {self.offset} of partition {self.partition!r} is not JSON ({error}); its bytes are in .value"
            ) from None


class Scheduled(NamedTuple):
    """Messages that are kept aside: the ids for `cancel`, and when they are due."""

    ids: tuple[int, ...]
    due_at: datetime


class Duplicate(NamedTuple):
    """A message that was not stored again, or that replaced another: its position among those given, and where the
    earlier one is.

    An earlier one that is itself still scheduled has a `scheduled_id`, and neither offset nor id yet.
    """

    position: int
    offset: int | None
    id: UUID | None
    scheduled_id: int | None


class PushResult(msgspec.Struct, frozen=True):
    """Where a push went: one partition, consecutive offsets.

    `count` messages were stored, or are scheduled; `duplicates` tells of the others. `replaced` tells which earlier
    ones with the same unique key gave way; one that was scheduled was replaced in its place, and is not in `count`.
    `timestamp` is the time of the messages, or, while they are scheduled, when they were taken.
    """

    queue: str
    partition: str
    partition_id: int
    _first_offset: int | None
    count: int
    timestamp: datetime
    scheduled: Scheduled | None = None
    duplicates: tuple[Duplicate, ...] = ()
    replaced: tuple[Duplicate, ...] = ()

    @property
    def first_offset(self) -> int:
        """The offset of the first message that was stored; scheduled ones have none yet, and raise."""
        if self._first_offset is None:
            raise self._too_early("offsets")
        return self._first_offset

    @property
    def ids(self) -> list[UUID]:
        """The ids of the messages, in the order they were given; a duplicate's is that of the original."""
        first = self._first_offset
        if first is None:
            raise self._too_early("ids")
        created_ms = milliseconds(self.timestamp)
        stored = [message_id(self.partition_id, offset, created_ms) for offset in range(first, first + self.count)]
        for position, _, found, _ in self._not_counted():
            if found is None:
                raise PenstockError(f"message {position} is the duplicate of one that is scheduled and has no id yet")
            stored.insert(position, found)
        return stored

    @property
    def given(self) -> int:
        """How many messages were given to the push."""
        return self.count + len(self._not_counted())

    def _not_counted(self) -> list[Duplicate]:
        """Return what of the messages given is not in `count`, in their order."""
        if not self.replaced:
            return list(self.duplicates)
        return sorted((*self.duplicates, *(each for each in self.replaced if each.scheduled_id is not None)))

    def part(self, start: int, stop: int) -> "PushResult":
        """Return the result for some of the messages, by their positions."""
        others = [each.position for each in self._not_counted()]
        before = sum(position < start for position in others)
        first = self._first_offset
        return msgspec.structs.replace(
            self,
            _first_offset=first if first is None else first + start - before,
            count=stop - start - sum(start <= position < stop for position in others),
            duplicates=_part(self.duplicates, start, stop),
            replaced=_part(self.replaced, start, stop),
        )

    def _too_early(self, what: str) -> PenstockError:
        due = self.scheduled.due_at.isoformat() if self.scheduled else "later"
        return PenstockError(f"these messages are due at {due} and get their {what} then; look at .scheduled")


def _part(duplicates: tuple[Duplicate, ...], start: int, stop: int) -> tuple[Duplicate, ...]:
    return tuple(each._replace(position=each.position - start) for each in duplicates if start <= each.position < stop)


def encode(value: Any) -> bytes | None:
    """Return what is stored for a value: bytes and None as they are, anything else as JSON."""
    if isinstance(value, bytes) or value is None:
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        encoded = _ENCODER.encode(value)
        # NaN and the infinities become null without a word: look for them where there is one.
        if b"null" in encoded and _loses_a_number(value):
            raise ValueError("it has a number that JSON cannot hold: NaN or an infinity")
        return encoded
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidInput(
            f"a message of type {type(value).__name__} cannot be stored as JSON ({error}); give bytes, a JSON value, "
            "a dataclass, or a model of pydantic or msgspec"
        ) from None


def _model(value: Any) -> Any:
    """Return a model of pydantic, wherever in a value it is, as JSON values; nothing of it is imported here."""
    dump = getattr(value, "model_dump", None)
    if dump is None or not hasattr(value, "model_dump_json"):
        raise TypeError(f"{type(value).__name__} has no form in JSON")
    return dump(mode="json")


_ENCODER = msgspec.json.Encoder(enc_hook=_model)


def _loses_a_number(value: Any) -> bool:
    match value:
        case float():
            return not math.isfinite(value)
        case None | str() | int():
            return False
        case dict():
            return any(map(_loses_a_number, value.values()))
        case list() | tuple():
            return any(map(_loses_a_number, value))
        case _:
            plain = msgspec.to_builtins(value, enc_hook=_model)
            return plain is not value and _loses_a_number(plain)
