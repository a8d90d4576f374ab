"""Messages in JSON, as requests bring them and answers show them, and leases as one text."""

from typing import Any
from uuid import UUID

import msgspec

from penstock.broker.claims import Claim, Lease
from penstock.broker.messages import Message, StoredMessage
from penstock.errors import InvalidInput
from penstock.operations.envelopes import Envelope, PushedEnvelope, trace_of, value_of

_LARGEST = 1 << 63


def envelope(message: StoredMessage) -> Envelope:
    """Return a stored message as it is shown."""
    return Envelope(
        message.queue,
        message.partition,
        message.offset,
        message.id,
        message.timestamp,
        message.key,
        message.headers,
        message.attempt or msgspec.UNSET,
        trace_of(message.headers),
        **value_of(message.value),
    )


def message_of(given: PushedEnvelope) -> Message:
    """Return the message that an envelope describes."""
    return Message(given.content(), given.key, given.all_headers(), given.partition, given.dedupe_id, given.unique_key)


class LeaseText(msgspec.Struct, frozen=True):
    """What identifies a claim and where it begins; one text for callers: group, partition, first offset, lease id."""

    lease: Lease
    start: int

    def __str__(self) -> str:
        return f"{self.lease.group_id}.{self.lease.partition_id}.{self.start}.{self.lease.lease_id}"


def lease_of(claim: Claim) -> str:
    """Return the text that identifies a claim."""
    return str(LeaseText(claim.lease, claim.start))


def read_lease(text: str) -> LeaseText:
    """Read such a text."""
    parts: list[Any] = text.split(".", 3)
    try:
        group, partition, start = (int(part) for part in parts[:3] if part.isascii() and part.isdecimal())
        if max(group, partition, start) >= _LARGEST:
            raise ValueError
        return LeaseText(Lease(group, partition, UUID(parts[3])), start)
    except (ValueError, IndexError):
        raise InvalidInput(f"{text!r:.100} is not a lease; use the one that pop returned") from None
