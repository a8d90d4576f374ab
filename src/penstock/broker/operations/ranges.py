"""Read many partitions at once with positions of one's own, as Spark's source does."""

from collections.abc import Sequence
from datetime import datetime

from penstock.broker.operations.operation import Repeatable
from penstock.broker.packing import Slice
from penstock.broker.ranges import (
    Advanced,
    Backlog,
    Heads,
    PartitionHead,
    PlannedPage,
    SavedSnapshot,
    SnapshotName,
    SnapshotRow,
)


class GetHeads(Repeatable[Heads], frozen=True):
    """Return where all partitions of some queues stand, and the private lanes of a group."""

    queues: Sequence[str] | None = None
    pattern: str | None = None
    floors: bool = False
    reader: str | None = None
    skip_missing: bool = False


class FindPartitions(Repeatable[dict[int, PartitionHead]], frozen=True):
    """Look up partitions by id; those that are gone are left out."""

    ids: Sequence[int]


class GetDeletedEnds(Repeatable[dict[int, int]], frozen=True):
    """Return where partitions ended that were deleted while a reader with positions of its own knew them."""

    ids: Sequence[int]


class FindOffsets(Repeatable[list[int]], frozen=True):
    """Find where a moment lies in each partition."""

    ids: Sequence[int]
    moment: datetime


class PlanRanges(Repeatable[list[PlannedPage]], frozen=True):
    """Cut ranges into pages of about so many bytes."""

    ids: Sequence[int]
    starts: Sequence[int]
    stops: Sequence[int]
    page_bytes: int


class GetBacklog(Repeatable[Backlog], frozen=True):
    """Return when the messages of ranges were pushed, and how large they are."""

    ids: Sequence[int]
    starts: Sequence[int]
    stops: Sequence[int]
    max_messages: int
    max_pieces: int


class ReadRanges(Repeatable[list[tuple[int, Slice]]], frozen=True):
    """Read ranges, still packed; each slice comes with the index of its range."""

    ids: Sequence[int]
    starts: Sequence[int]
    stops: Sequence[int]


class SaveSnapshot(Repeatable[SavedSnapshot], frozen=True):
    """Keep how far a batch reads. Saved twice, because the connection broke, it leaves one that nobody knows.

    `all_ids` and `all_positions` are the positions of all partitions, where they are kept with this one.
    """

    parent: SnapshotName | None
    ids: Sequence[int]
    starts: Sequence[int]
    stops: Sequence[int]
    all_ids: Sequence[int] | None = None
    all_positions: Sequence[int] | None = None


class GetSnapshots(Repeatable[list[SnapshotRow]], frozen=True):
    """Return a snapshot and those before it, the newest first."""

    name: SnapshotName
    down_to: int | None = None


class GetNextSnapshot(Repeatable[SnapshotName | None], frozen=True):
    """Return the snapshot that was saved after this one."""

    snapshot_id: int


class KeepSnapshot(Repeatable[None], frozen=True):
    """Say that a query still goes on from a snapshot."""

    snapshot_id: int


class NoteEpoch(Repeatable[None], frozen=True):
    """Say which snapshot an epoch reads."""

    writer: str
    run: str
    epoch: int
    snapshot_id: int


class EnsureReader(Repeatable[None], frozen=True):
    """Create an external group, unless it exists."""

    queue: str
    group: str


class AdvanceReader(Repeatable[Advanced], frozen=True):
    """Say how far an external group has read; `lineage` is the reader that the group follows."""

    queue: str
    group: str
    ids: Sequence[int]
    offsets: Sequence[int]
    lineage: int | None = None
    takes_over: bool = False


class GetReaderPositions(Repeatable[tuple[list[int], list[int]]], frozen=True):
    """Return how far a group has read the partitions that it knows: their ids, and an offset for each."""

    queues: Sequence[str]
    group: str
