"""Where messages lie: a partition of a queue, and ranges of it, still packed."""

from typing import NamedTuple

from penstock.broker.arguments import Name, as_text
from penstock.broker.messages import StoredMessage
from penstock.broker.packing import Slice, unpack


class _Place(NamedTuple):
    queue: str
    partition: str


class Place(_Place):
    """A partition of a queue, by name; a number or a UUID is a name, too."""

    __slots__ = ()

    def __new__(cls, queue: str, partition: Name) -> "Place":  # noqa: D102
        return _Place.__new__(cls, queue, partition if type(partition) is str else as_text(partition))


class Slices(NamedTuple):
    """One page of a range, still packed, and where the rest begins (None: this was all)."""

    partition_id: int
    slices: list[Slice]
    next_offset: int | None

    def unpack(self, place: Place) -> list[StoredMessage]:
        """Return the messages of this page."""
        messages: list[StoredMessage] = []
        for part in self.slices:
            messages += unpack(place.queue, place.partition, self.partition_id, part)
        return messages
