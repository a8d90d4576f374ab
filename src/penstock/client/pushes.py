"""What a caller wants pushed, made ready for one operation.

Callers give one value, a list, or messages with keys and partitions of their own; the engine wants packed segments
per partition. This is the way from the one to the other.
"""

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from penstock import tracing
from penstock.broker.arguments import Name, Seconds, as_text, delay_time
from penstock.broker.items import KEPT_FOR, RESULT_HEADER
from penstock.broker.messages import Message, StoredMessage, encode
from penstock.broker.names import check_new_names
from penstock.broker.packing import pack_values
from penstock.broker.places import Place
from penstock.broker.pushing import Due, PushBatch, Uniqueness
from penstock.errors import InvalidInput

# A change of `spread` moves keys to other partitions anyhow; for this long two clients may disagree where to.
_SPREAD_SECONDS = 5.0


class Spreads:
    """What a client remembers of the queues' `spread`, so that a push without a partition costs one round trip."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}

    def get(self, queue: str) -> int | None:
        """Return what is known, and still fresh."""
        spread, until = self._known.get(queue, (None, 0.0))
        return spread if until > time.monotonic() else None

    def put(self, queue: str, spread: int) -> int:
        """Remember a value, and return it."""
        self._known[queue] = (spread, time.monotonic() + _SPREAD_SECONDS)
        return spread

    def forget(self, queue: str) -> None:
        """Forget one queue."""
        self._known.pop(queue, None)


def gather(
    given: Any,
    partition: Name | None = None,
    key: Name | None = None,
    headers: Mapping[str, str] | None = None,
    dedupe_id: str | None = None,
    unique_key: str | None = None,
) -> list[Message]:
    """Return what `push` was given as messages of bytes or None; what a message says itself comes first.

    Values are encoded here, so that a bad one is refused, and a mutable one is taken, when it is given.
    """
    partition, key = as_text(partition), as_text(key)
    items = given if isinstance(given, list | tuple) else [given]
    if not items:
        raise InvalidInput("an empty push: give at least one message")
    if dedupe_id is not None and len(items) > 1:
        raise InvalidInput("a dedupe_id belongs to one message: give each its own with Message(…, dedupe_id=…)")
    if unique_key is not None and len(items) > 1:
        raise InvalidInput("a unique_key belongs to one message: give each its own with Message(…, unique_key=…)")
    messages = [_message(item, partition, key, headers, dedupe_id, unique_key) for item in items]
    if tracing.is_on():
        return [msgspec.structs.replace(each, headers=tracing.with_context(each.headers)) for each in messages]
    return messages


def asking_for_result(headers: Mapping[str, str] | None, result: bool | Seconds) -> dict[str, str]:
    """Return headers that ask for the result to be kept, for as long as is said."""
    kept_for = KEPT_FOR if result is True else delay_time(result)
    if not kept_for:
        raise InvalidInput(f"result is {result!r} but must be True or more than 0 seconds")
    return {**(headers or {}), RESULT_HEADER: f"{max(kept_for, 1e-6):.6f}".rstrip("0").rstrip(".")}


def all_asking_for_result(messages: Sequence[Message], result: bool | Seconds) -> list[Message]:
    """Return messages with such headers, whatever headers they have of their own."""
    return [
        msgspec.structs.replace(message, headers=asking_for_result(message.headers, result)) for message in messages
    ]


def plain(given: Any) -> list[bytes | None] | None:
    """Return the values of a push that has no `Message` in it, or None.

    Such a push, and most are, needs no object per message.
    """
    if type(given) is bytes:
        return [given]
    items = given if isinstance(given, list | tuple) else [given]
    types = set(map(type, items))
    if not types or any(issubclass(kind, (Message, StoredMessage)) for kind in types):
        return None
    return list(items) if types == {bytes} else list(map(encode, items))


def pack_plain(
    where: Place, values: list[bytes | None], key: Name | None, headers: Mapping[str, str] | None
) -> PushBatch:
    """Pack values that share their partition, key and headers."""
    return PushBatch(where, pack_values(values, as_text(key), tracing.with_context(headers)))


def only_partition(key: Name | None, spread: int) -> str:
    """Pick the partition of messages that name none."""
    # Not for secrets: any of the partitions will do.
    return str(random.randrange(spread)) if key is None else partition_for_key(as_text(key), spread)  # noqa: S311


def gather_many(given: Iterable[tuple[Name, Any] | Message]) -> list[Message]:
    """Return what `push_many` was given as messages: (partition, message) pairs, or messages."""
    if not isinstance(given, Iterable):
        raise InvalidInput(f"push_many takes (partition, message) pairs or Messages, not {given!r}")
    return gather([_pair(item) for item in given])


def place(queue: str, messages: Sequence[Message], spread: int) -> dict[Place, list[Message]]:
    """Sort messages by partition, in the order of first appearance.

    Those with neither a partition nor a key stay together: a batch is one segment.
    """
    # Not for secrets: any of the partitions will do.
    keyless = str(random.randrange(spread))  # noqa: S311
    # By name first: hashing a Place for each message costs more than all the rest.
    placed: defaultdict[str, list[Message]] = defaultdict(list)
    for message in messages:
        # Numbers and UUIDs have become texts when the messages were gathered.
        partition: Any = message.partition
        if partition is None:
            deciding: Any = message.key
            if deciding is None:
                deciding = message.unique_key if message.dedupe_id is None else message.dedupe_id
            partition = keyless if deciding is None else partition_for_key(deciding, spread)
        placed[partition].append(message)
    return {Place(queue, partition): found for partition, found in placed.items()}


def batches(
    placed: Mapping[Place, Sequence[Message]], due: Due | None = None, uniqueness: Uniqueness | None = None
) -> list[PushBatch]:
    """Pack the messages of each partition."""
    return [PushBatch.of(where, messages, due, uniqueness) for where, messages in placed.items()]


def needs_spread(messages: Iterable[Message]) -> bool:
    """Say whether the queue's `spread` decides where a message goes."""
    return any(message.partition is None for message in messages)


def require_names(queue: str, messages: Sequence[Message]) -> None:
    """Refuse messages for a queue or partition that cannot be, or with a key that picks no partition."""
    # Numbers and UUIDs have become texts when the messages were gathered.
    given: list[Any] = [message.partition for message in messages]
    # Once each; what is no text may have no hash, and is refused as the first.
    named = dict.fromkeys(given) if all(isinstance(name, str | None) for name in given) else given
    check_new_names(queue, *(name for name in named if name is not None))
    for message in messages if None in named else ():
        if message.partition is None and message.key is not None:
            _require_key(message.key)


def _require_key(key: Any) -> None:
    if not isinstance(key, str) or not key:
        raise InvalidInput(f"a key must be a text of at least one character, and {key!r} is not")


def partition_for_key(key: str, spread: int) -> str:
    """Pick the partition of a key, as the SQL function of this name does."""
    _require_key(key)
    digest = sha256(key.encode("utf-8", "surrogatepass")).digest()
    return str(int.from_bytes(digest[:4], "big") % spread)


def only_place(placed: Mapping[Place, object]) -> None:
    """Refuse a `push` whose messages go to several partitions: its result has room for one."""
    if len(placed) > 1:
        raise InvalidInput(
            f"the keys or dedupe ids of these messages pick {len(placed)} partitions; use push_many, which returns a "
            "result for each"
        )


def _pair(item: Any) -> Message:
    match item:
        case Message() | StoredMessage():
            return _message(item)
        case (str() | int() | UUID() as partition, message):
            return msgspec.structs.replace(_message(message), partition=as_text(partition))
        case _:
            raise InvalidInput(f"push_many takes (partition, message) pairs or Messages, not {item!r}")


def _message(
    item: Any,
    partition: str | None = None,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    dedupe_id: str | None = None,
    unique_key: str | None = None,
) -> Message:
    match item:
        case Message():
            return Message(
                encode(item.value),
                key if item.key is None else as_text(item.key),
                headers if item.headers is None else item.headers,
                partition if item.partition is None else as_text(item.partition),
                dedupe_id if item.dedupe_id is None else item.dedupe_id,
                unique_key if item.unique_key is None else item.unique_key,
            )
        case StoredMessage():
            # Pushed on to another queue: its place there is its own.
            return Message(item.value, key or item.key, headers or item.headers, partition, dedupe_id, unique_key)
        case _:
            return Message(encode(item), key, headers, partition, dedupe_id, unique_key)
