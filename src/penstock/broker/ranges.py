"""Ranges of many partitions at once, and snapshots: what a reader with positions of its own works with."""

from typing import NamedTuple


class Heads(NamedTuple):
    """Where partitions stand, as parallel lists; floors are 0 where they were not asked for."""

    ids: list[int]
    floors: list[int]
    heads: list[int]


class PartitionHead(NamedTuple):
    """A partition by name, and where it stands."""

    partition_id: int
    queue: str
    partition: str
    floor: int
    head: int


class PlannedPage(NamedTuple):
    """A part of a range that is read at once."""

    partition_id: int
    start: int
    stop: int
    bytes: int


class Backlog(NamedTuple):
    """What waits in ranges, as parallel lists: the messages of each range (from 1) that were pushed in one second."""

    ranges: list[int]
    firsts: list[int]
    messages: list[int]
    bytes: list[int]
    seconds: list[int]


class SnapshotRow(NamedTuple):
    """What one batch of a streaming query reads, and perhaps the positions of all partitions after it."""

    snapshot_id: int
    depth: int
    lineage: int
    ids: list[int]
    starts: list[int]
    ends: list[int]
    all_ids: list[int] | None
    all_positions: list[int] | None


class SnapshotName(NamedTuple):
    """What a checkpoint knows of a snapshot."""

    snapshot_id: int
    token: str


class SavedSnapshot(NamedTuple):
    """A snapshot that was saved, and its lineage: the id of the query's first one."""

    name: SnapshotName
    lineage: int


class Advanced(NamedTuple):
    """How many positions moved, and how many partitions were busy."""

    moved: int
    busy: int
