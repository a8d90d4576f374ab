"""Archives: begin and record runs, find what is archived, drop it from the log."""

from collections.abc import Sequence
from datetime import datetime

from penstock.broker.archives import (
    Archivable,
    Archived,
    ArchivedLetter,
    ArchiveFile,
    ArchiveInfo,
    BegunArchive,
    DroppedArchived,
    LetterCopy,
)
from penstock.broker.operations.operation import Operation, Repeatable


class ListArchives(Repeatable[list[ArchiveInfo]], frozen=True):
    """List the recorded runs of a queue, or of all."""

    queue: str | None = None


class FindArchivable(Repeatable[list[Archivable]], frozen=True):
    """Find what can be archived now."""

    queue: str
    before: datetime | None = None
    partitions: Sequence[str] | None = None


class BeginArchive(Operation[BegunArchive], frozen=True):
    """Begin a run, on a connection that is kept for as long as it lasts."""

    queue: str
    location: str


class ForgetArchive(Repeatable[bool], frozen=True):
    """Forget a run that was not recorded."""

    run: str


class RecordArchive(Repeatable[int], frozen=True):
    """Record a run: from here on it is archived."""

    run: str
    files: Sequence[ArchiveFile]


class DropArchived(Repeatable[DroppedArchived], frozen=True):
    """Drop segments that are archived, of a chunk of partitions."""

    queue: str
    partitions: Sequence[str] | None = None
    after: int = 0


class GetArchivedFloors(Repeatable[list[int]], frozen=True):
    """Find from where on partitions can be read together with their archive; `floors` are those of the log."""

    ids: Sequence[int]
    floors: Sequence[int]


class PlanArchived(Repeatable[list[Archived]], frozen=True):
    """Find where archived messages lie."""

    ids: Sequence[int]
    starts: Sequence[int]
    stops: Sequence[int]


class FindArchivedAt(Repeatable[list[tuple[Archived, bool]]], frozen=True):
    """Find the archived ranges in which a moment lies, and whether it lies at their beginning."""

    ids: Sequence[int]
    moment: datetime


class GetPublishedBatch(Repeatable[int | None], frozen=True):
    """Return how many messages a batch of this name has published, if it was."""

    writer: str


class ListArchivedLetters(Repeatable[list[ArchivedLetter]], frozen=True):
    """List what is to become dead letters and is not in the log."""

    stage_id: int


class CopyLetters(Repeatable[int], frozen=True):
    """Keep copies of messages that are to become dead letters."""

    stage_id: int
    copies: Sequence[LetterCopy]
