"""Archives: what can be archived, what is, and where it lies."""

from datetime import datetime
from typing import NamedTuple

import msgspec


class ArchiveInfo(msgspec.Struct, frozen=True):
    """A recorded run of `penstock archive`."""

    queue: str
    run: str
    location: str
    recorded_at: datetime
    partitions: int
    messages: int
    files: int
    bytes: int
    first_time: datetime | None
    last_time: datetime | None


class BegunArchive(NamedTuple):
    """A run, and those before it that were begun and never recorded."""

    run: str
    left: list[tuple[str, str]]


class Archivable(NamedTuple):
    """What of a partition can be archived."""

    partition_id: int
    partition: str
    start: int
    stop: int


class Archived(NamedTuple):
    """Messages of a partition that lie in one row group of a file."""

    partition_id: int
    start: int
    stop: int
    bytes: int
    location: str
    path: str
    file_id: int
    row_group: int
    first_row: int


class ArchivedRange(msgspec.Struct, frozen=True, array_like=True):
    """Messages of a partition that a run has written to one row group."""

    partition_id: int
    partition: str
    start: int
    stop: int
    row_group: int
    first_row: int
    bytes: int
    first_time: datetime
    last_time: datetime


class ArchiveFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a run, by its path below the location, and what it holds in the order of its rows."""

    path: str
    ranges: list[ArchivedRange]
    bytes: int = 0
    checksum: str = ""

    @property
    def messages(self) -> int:
        """How many messages it holds."""
        return sum(part.stop - part.start for part in self.ranges)


class DroppedArchived(NamedTuple):
    """What was dropped, and where to go on (None: that was all)."""

    segments: int
    messages: int
    next_partition: int | None


class ArchivedLetter(NamedTuple):
    """A message that is to become a dead letter and is not in the log any more."""

    queue: str
    partition: str
    partition_id: int
    offset: int


class LetterCopy(NamedTuple):
    """A copy of an archived message that is to become a dead letter."""

    partition_id: int
    offset: int
    value: bytes | None
    key: str | None
    headers: str | None
    timestamp: datetime
