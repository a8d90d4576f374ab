"""Items as they lie in Valkey: the messages of a claim, each packed, with nothing but what the claim does not tell.

Of a message that is larger than `LARGEST` only size and time are there, as `L<bytes> <ms>`: who takes it reads the log.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

import msgspec

from penstock.broker.claims import Claim
from penstock.broker.ids import milliseconds
from penstock.broker.messages import StoredMessage

LARGEST = 32 << 10
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[datetime, bytes | None, str | None, dict[str, str] | None]).decode
# What no packed content begins with.
_ELSEWHERE = b"L"


class ClaimNote(NamedTuple):
    """What is kept of a claim in PostgreSQL beside its items: `time_ms` is that of its first message."""

    lease_id: UUID
    partition_id: int
    attempt: int
    start: int
    stop: int
    size: int
    time_ms: int
    partition: str


# Takes of single items get the same note again and again.
@lru_cache(1024)
def read_note(text: bytes) -> ClaimNote:
    """Read what is kept of a claim."""
    lease, partition_id, attempt, start, stop, size, time_ms, partition = text.decode().split(" ", 7)
    return ClaimNote(
        UUID(lease), int(partition_id), int(attempt), int(start), int(stop), int(size), int(time_ms), partition
    )


def pack_claim(claim: Claim, number: int) -> list[bytes]:
    """Return a claim as `load` takes it: its number, what is kept of it, how many items, and the items."""
    items = [b""] * (claim.stop - claim.start)
    size, first = 0, 0
    for message in claim.messages:
        moment = milliseconds(message.timestamp)
        first = first or max(moment, 0)
        content = b""
        if message.value is None or len(message.value) <= LARGEST:
            # A key or header that is no text is read from the log, too.
            with suppress(UnicodeEncodeError):
                content = _encode((message.timestamp, message.value, message.key, message.headers))
        content = content or b"%b%d %d" % (_ELSEWHERE, len(message.value or b""), moment)
        items[message.offset - claim.start] = content
        size += len(content)
    note = (
        f"{claim.lease_id} {claim.partition_id} {claim.attempt} {claim.start} {claim.stop} {size} {first} "
        f"{claim.partition}"
    )
    return [b"%d" % number, note.encode(), b"%d" % len(items), *items]


def unpack_items(
    queue: str, note: ClaimNote, start: int, items: Sequence[bytes]
) -> tuple[list[StoredMessage], list[tuple[int, int]]]:
    """Return the messages of items, the first of which has this offset; then offset and ms of those in the log."""
    messages: list[StoredMessage] = []
    elsewhere: list[tuple[int, int]] = []
    partition, partition_id, attempt = note.partition, note.partition_id, note.attempt
    for offset, item in enumerate(items, start):
        if not item:
            continue  # not delivered with its claim
        if item.startswith(_ELSEWHERE):
            elsewhere.append((offset, int(item.split()[1])))
            continue
        moment, value, key, headers = _decode(item)
        messages.append(StoredMessage(value, offset, moment, queue, partition, partition_id, key, headers, attempt))
    return messages, elsewhere
