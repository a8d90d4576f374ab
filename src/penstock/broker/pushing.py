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

from penstock.broker.arguments import LONGEST_DELAY, Seconds, delay_time, positive
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


class Uniqueness(NamedTuple):
    """How long a unique key counts: for so many seconds, or until its message is 'taken' or 'done'.

    If both are given, both must hold. With `replace`, an earlier message that still waits gives way.
    """

    seconds: float | None
    until: str | None
    replace: bool


class PushBatch(msgspec.Struct, frozen=True):
    """Messages for one partition, in order, packed; those with a `due` are scheduled.

    `dedupe_ids` has an entry for each message, where any of them has one, and so has `unique_keys`. Where there are
    unique keys each message is a segment, and `uniqueness` says for how long they count.
    """

    place: Place
    segments: Sequence[Segment]
    due: Due | None = None
    dedupe_ids: Sequence[str | None] | None = None
    unique_keys: Sequence[str | None] | None = None
    uniqueness: Uniqueness | None = None

    def __post_init__(self) -> None:
        check_new_names(*self.place)
        if not self.segments:
            raise InvalidInput("an empty push: give at least one message")
        if self.dedupe_ids is not None:
            _check_texts("dedupe_id", self.dedupe_ids)
        if self.unique_keys is not None:
            _check_texts("unique_key", self.unique_keys)
            if len(self.unique_keys) != len(self.segments):
                raise InvalidInput("with unique keys, each message is a segment and has an entry among them")

    @classmethod
    def of(
        cls,
        place: Place,
        messages: Sequence[Message],
        due: Due | None = None,
        uniqueness: Uniqueness | None = None,
    ) -> "PushBatch":
        """Pack messages whose values are bytes or None."""
        if uniqueness is not None:
            segments = [segment for message in messages for segment in pack([message])]
            return cls(place, segments, due, None, [message.unique_key for message in messages], uniqueness)
        once = any(message.dedupe_id is not None for message in messages)
        return cls(place, pack(messages), due, [message.dedupe_id for message in messages] if once else None)

    @property
    def plain(self) -> bool:
        """Whether it is pushed now, and no message of it counts once."""
        return self.due is None and self.dedupe_ids is None and self.unique_keys is None

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


def uniqueness(
    messages: Sequence[Message], seconds: Seconds | None, until: str | None, replace: bool
) -> Uniqueness | None:
    """Return for how long the unique keys of messages count; None where none has one."""
    keys = [message.unique_key for message in messages if message.unique_key is not None]
    if not keys:
        if seconds is not None or until is not None or replace:
            raise InvalidInput("unique_for, unique_until and replace belong to a unique_key: give one")
        return None
    if seconds is None and until is None:
        raise InvalidInput("a unique_key needs unique_for or unique_until: say for how long it counts")
    length = positive("unique_for", seconds)
    if length is not None and length > LONGEST_DELAY:
        raise InvalidInput(f"unique_for is {seconds!r} but must be at most {LONGEST_DELAY} seconds")
    if until not in (None, "taken", "done"):
        raise InvalidInput(f"unique_until is {until!r} but must be 'taken' or 'done'")
    if not isinstance(replace, bool):
        raise InvalidInput(f"replace is {replace!r} but must be True or False")
    _check_texts("unique_key", keys)
    if any(message.dedupe_id is not None for message in messages):
        raise InvalidInput("a push can have dedupe ids or unique keys, and not both")
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidInput(f"the unique_key {twice!r} is given twice in one push")
    return Uniqueness(length, until, replace)


def _check_texts(what: str, texts: Iterable[str | None]) -> None:
    for each in texts:
        if each is not None and (not isinstance(each, str) or not each):
            raise InvalidInput(f"a {what} must be a text of at least one character, and {each!r} is not")
        if each is not None:
            check_names(each, what=(what,))
