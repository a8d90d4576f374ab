# ruff: noqa
"""Operations of ranges by their former names."""

from collections.abc import Sequence

from penstock.broker.operations.ranges import AdvanceReader as advance
from penstock.broker.operations.ranges import EnsureReader as ensure_reader
from penstock.broker.operations.ranges import FindOffsets as offsets_at
from penstock.broker.operations.ranges import FindPartitions as places
from penstock.broker.operations.ranges import GetBacklog as backlog
from penstock.broker.operations.ranges import GetDeletedEnds as deleted_ends
from penstock.broker.operations.ranges import GetHeads as heads
from penstock.broker.operations.ranges import GetNextSnapshot as next_snapshot
from penstock.broker.operations.ranges import GetSnapshots as chain
from penstock.broker.operations.ranges import KeepSnapshot as keep_snapshot
from penstock.broker.operations.ranges import NoteEpoch as note_epoch
from penstock.broker.operations.ranges import PlanRanges as plan
from penstock.broker.operations.ranges import ReadRanges as read
from penstock.broker.operations.ranges import SaveSnapshot
from penstock.broker.ranges import Heads as Heads
from penstock.broker.ranges import PartitionHead as Where
from penstock.broker.ranges import PlannedPage as PlannedPage
from penstock.broker.ranges import SnapshotName as SnapshotName

__all__ = [
    "Heads",
    "PlannedPage",
    "SnapshotName",
    "Where",
    "advance",
    "backlog",
    "chain",
    "deleted_ends",
    "ensure_reader",
    "heads",
    "keep_snapshot",
    "next_snapshot",
    "note_epoch",
    "offsets_at",
    "places",
    "plan",
    "read",
    "save_snapshot",
]


def save_snapshot(
    parent: SnapshotName | None,
    ranges: tuple[Sequence[int], Sequence[int], Sequence[int]],
    everything: tuple[Sequence[int], Sequence[int]] | None,
) -> SaveSnapshot:
    return SaveSnapshot(parent, *ranges, *(everything or (None, None)))
