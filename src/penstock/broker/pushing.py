"""What is pushed: packed messages of one partition, when they are due, and which push they belong to.

A push whose connection broke may have been stored or not. So a client numbers its pushes: one that comes again under
the same number gets the first answer, and stores nothing. Numbers are never used twice, and may have gaps.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import count
from typing import NamedTuple
from uuid import UUID, uuid4

import msgspec

from penstock.broker.arguments import Seconds, delay_time
from penstock.broker.messages import Message
from penstock.broker.names import check_moment, check_names, check_new_names
from penstock.broker.packing import Segment, pack
from penstock.broker.places import Place
from penstock.errors import InvalidInput


class Stamp(NamedTuple):
    """What tells one push from all others."""

    producer: UUID
    sequence: int


class Producer:
    """A client, as far as it pushes. Safe to share between threads."""

    def __init__(self) -> None:
        self.id = uuid4()
        self._sequences = count(1)

    def stamp(self) -> Stamp:
        """Return the stamp of the next push."""
        return Stamp(self.id, next(self._sequences))


class Due(NamedTuple):
    """When messages are due: so many seconds after the server has taken them, or at a time."""

    delay: float | None
    at: datetime | None


class PushBatch(msgspec.Struct, frozen=True):
    """Messages for one partition, in order, packed; those with a `due` are scheduled.

    `dedupe_ids` has an entry for each message, where any of them has one.
    """

    place: Place
    segments: Sequence[Segment]
    due: Due | None = None
    dedupe_ids: Sequence[str | None] | None = None

    def __post_init__(self) -> None:
        check_new_names(*self.place)
        if self.dedupe_ids is not None:
            _check_dedupe_ids(self.dedupe_ids)

    @classmethod
    def of(cls, place: Place, messages: Sequence[Message], due: Due | None = None) -> "PushBatch":
        """Pack messages whose values are bytes or None."""
        once = any(message.dedupe_id is not None for message in messages)
        return cls(place, pack(messages), due, [message.dedupe_id for message in messages] if once else None)

    @property
    def plain(self) -> bool:
        """Whether it is pushed now, and no message of it counts once."""
        return self.due is None and self.dedupe_ids is None

    @property
    def count(self) -> int:
        """How many messages it has."""
        segments = self.segments
        return segments[0].count if len(segments) == 1 else sum(segment.count for segment in segments)


def due(delay: Seconds | None, at: datetime | None) -> Due | None:
    """Return when a push is due; None for one that is not delayed."""
    delay = delay_time(delay)
    if delay is None and at is None:
        return None
    if delay is not None and at is not None:
        raise InvalidInput("give delay or at, and not both")
    check_moment(at)
    return Due(delay, at)


def _check_dedupe_ids(dedupe_ids: Iterable[str | None]) -> None:
    for each in dedupe_ids:
        if each is not None and (not isinstance(each, str) or not each):
            raise InvalidInput(f"a dedupe_id must be a text of at least one character, and {each!r} is not")
        if each is not None:
            check_names(each, what=("dedupe_id",))
