"""Claims: leased ranges of a partition, as a pop returns them and as they are settled."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from penstock.broker.messages import StoredMessage

# The size of a pop, of each partition: about what a handler can hold.
MAX_BYTES = 8 << 20


class Lease(NamedTuple):
    """What identifies a claim. Whoever knows the lease id can settle it."""

    group_id: int
    partition_id: int
    lease_id: UUID | None


class ClaimRange(NamedTuple):
    """Messages of a claim that are done: offsets from `start` up to and without `stop`.

    Without a start, from the claim's beginning; without a stop, to its end. In an ordered group everything below `stop`
    is done.
    """

    group_id: int
    partition_id: int
    lease_id: UUID | None
    start: int | None = None
    stop: int | None = None


@dataclass(slots=True)
class Claim:
    """A leased range of offsets of one partition."""

    group_id: int
    partition_id: int
    partition: str
    lease_id: UUID | None
    lease_until: datetime | None
    attempt: int
    start: int
    stop: int
    # Where in the ready list it was found: the level of priority, and the entry.
    level: int
    ready_seq: int
    shared: bool
    # How long it is leased for, by the server's clock: this machine's may be wrong.
    lease_seconds: float | None
    messages: list[StoredMessage] = field(default_factory=list)
    # How many bytes the values of its messages have.
    size: int = 0

    @property
    def lease(self) -> Lease:
        """What identifies it."""
        return Lease(self.group_id, self.partition_id, self.lease_id)

    def done(self, start: int | None = None, stop: int | None = None) -> ClaimRange:
        """Return the range from `start` to `stop`; by default, all of it."""
        return ClaimRange(self.group_id, self.partition_id, self.lease_id, start, stop)


class AckedAndPopped(NamedTuple):
    """What came of an ack and the pop after it: for each range whether it is done, and what was claimed."""

    acked: list[bool]
    claims: list[Claim]
