"""What goes in and what comes out: messages and the results of pushing them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from penstock.engine.ids import message_id, milliseconds
from penstock.errors import InvalidInput


# msgspec structs, because a push or a read makes one object per message and nothing makes them faster.
class Message(msgspec.Struct, frozen=True):
    """A message to push.

    Bytes are stored as they are; any other value is stored as JSON. A key without a partition picks the
    partition, so that messages of one key stay in order.
    """

    value: Any
    key: str | None = None
    headers: Mapping[str, str] | None = None
    partition: str | None = None


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as it lies in the log; `attempt` counts its deliveries where a group delivers it."""

    value: bytes
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
        """Return the value decoded from JSON."""
        try:
            return msgspec.json.decode(self.value)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(
                f"message {self.offset} of partition {self.partition!r} is not JSON ({error}); its bytes are in .value"
            ) from None


@dataclass(frozen=True, slots=True)
class PushResult:
    """Where a push went: one partition, consecutive offsets."""

    queue: str
    partition: str
    partition_id: int
    first_offset: int
    count: int
    timestamp: datetime

    @property
    def ids(self) -> list[UUID]:
        """The ids of the messages, in the order they were given."""
        created_ms = milliseconds(self.timestamp)
        return [
            message_id(self.partition_id, offset, created_ms)
            for offset in range(self.first_offset, self.first_offset + self.count)
        ]


def encode(value: Any) -> bytes:
    """Return the bytes that are stored for a value: bytes as they are, anything else as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        encoded = msgspec.json.encode(value)
        # NaN and the infinities become null without a word: look for them where there is one.
        if b"null" in encoded and _loses_a_number(value):
            raise ValueError("it has a number that JSON cannot hold: NaN or an infinity")
        return encoded
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidInput(
            f"a message of type {type(value).__name__} cannot be stored as JSON ({error}); give bytes, or a JSON value"
        ) from None


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
            plain = msgspec.to_builtins(value)
            return plain is not value and _loses_a_number(plain)
