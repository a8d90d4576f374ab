"""Message ids are addresses: a UUIDv8 made of a time, a partition id and an offset.

48 bits of milliseconds since 1970, 32 bits of partition id, 42 bits of offset; the other 6 mark the UUID's version and
variant. An id costs no storage, sorts by time, and finds its message without an index. The SQL function
`message_id` computes the same.
"""

from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from penstock.errors import InvalidInput

PARTITION_BITS = 32
OFFSET_BITS = 42
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET_MASK = (1 << OFFSET_BITS) - 1
_LOW_PARTITION_BITS = 62 - OFFSET_BITS
_LOW_PARTITION_MASK = (1 << _LOW_PARTITION_BITS) - 1


class Address(NamedTuple):
    """Where a message lies."""

    partition_id: int
    offset: int
    created_ms: int


def milliseconds(moment: datetime) -> int:
    """Return whole milliseconds since 1970, exactly: a float would round the last digits."""
    elapsed = moment - _EPOCH
    return elapsed.days * 86_400_000 + elapsed.seconds * 1000 + elapsed.microseconds // 1000


def message_id(partition_id: int, offset: int, created_ms: int) -> UUID:
    """Return the id of the message at this address."""
    high = created_ms << 16 | 0x8000 | partition_id >> _LOW_PARTITION_BITS
    low = 1 << 63 | (partition_id & _LOW_PARTITION_MASK) << OFFSET_BITS | offset
    return UUID(int=high << 64 | low)


def parse_id(given: UUID | str) -> UUID:
    """Return an id that may be given as a text."""
    address(given)
    return given if isinstance(given, UUID) else UUID(given)


def address(message_id: UUID | str) -> Address:
    """Return the address that an id stands for."""
    try:
        value = message_id.int if isinstance(message_id, UUID) else UUID(message_id).int
    except (ValueError, TypeError, AttributeError):
        raise InvalidInput(f"{message_id!r} is not a message id: ids are UUIDs") from None
    high, low = value >> 64, value & (1 << 64) - 1
    if high >> 12 & 0xF != 8 or low >> 62 != 0b10:
        raise InvalidInput(f"{message_id} is not a message id: it is not a UUID of version 8")
    partition_id = (high & 0xFFF) << _LOW_PARTITION_BITS | low >> OFFSET_BITS & _LOW_PARTITION_MASK
    return Address(partition_id, low & _OFFSET_MASK, high >> 16)
