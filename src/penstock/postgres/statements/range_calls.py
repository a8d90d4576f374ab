"""The calls of a reader of many partitions at once that keeps positions of its own, as Spark's source does."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from penstock.broker.packing import Slice
from penstock.postgres.statements.calls import Call, Row, nothing, select_slices, slice_of


class Heads(NamedTuple):
    """Where partitions stand, as parallel lists; floors are 0 where they were not asked for."""

    ids: list[int]
    floors: list[int]
    heads: list[int]


class Where(NamedTuple):
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


def heads(
    queues: Sequence[str] | None,
    pattern: str | None,
    floors: bool,
    reader: str | None = None,
    skip_missing: bool = False,
) -> Call[Heads]:
    """Look where all partitions of some queues stand, and the private lanes of a group."""
    return Call(
        "SELECT * FROM penstock.source_heads(%s::text[], %s::text, %s::boolean, %s::text, %s::boolean)",
        (None if queues is None else list(queues), pattern, floors, reader, skip_missing),
        lambda rows: Heads(*[column or [] for column in rows[0]]),
        True,
    )


def places(ids: Sequence[int]) -> Call[dict[int, Where]]:
    """Look up partitions by id; those that are gone are left out."""
    return Call(
        "SELECT * FROM penstock.source_places(%s::bigint[])",
        (list(ids),),
        lambda rows: {row[0]: Where(*row) for row in rows},
        True,
    )


def deleted_ends(ids: Sequence[int]) -> Call[dict[int, int]]:
    """Ask where partitions ended that were deleted while a reader with positions of its own knew them."""
    return Call(
        "SELECT * FROM penstock.deleted_ends(%s::bigint[])", (list(ids),), lambda rows: dict(map(tuple, rows)), True
    )


def offsets_at(ids: Sequence[int], moment: datetime) -> Call[list[int]]:
    """Find where a moment lies in each partition."""
    return Call(
        "SELECT penstock.offsets_at(%s::bigint[], %s::timestamptz)",
        (list(ids), moment),
        lambda rows: rows[0][0] or [],
        True,
    )


def plan(ids: Sequence[int], starts: Sequence[int], stops: Sequence[int], page_bytes: int) -> Call[list[PlannedPage]]:
    """Cut ranges into pages of about so many bytes."""
    return Call(
        "SELECT * FROM penstock.plan_ranges(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint)",
        (list(ids), list(starts), list(stops), page_bytes),
        lambda rows: [PlannedPage(*row) for row in rows],
        True,
    )


def backlog(
    ids: Sequence[int], starts: Sequence[int], stops: Sequence[int], max_messages: int, max_pieces: int
) -> Call[Backlog]:
    """Ask when the messages of ranges were pushed, and how large they are."""
    return Call(
        "SELECT * FROM penstock.backlog_by_time(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint, %s::integer)",
        (list(ids), list(starts), list(stops), max_messages, max_pieces),
        lambda rows: Backlog(*[column or [] for column in rows[0]]),
        True,
    )


def read(ids: Sequence[int], starts: Sequence[int], stops: Sequence[int]) -> Call[list[tuple[int, Slice]]]:
    """Read ranges, still packed; each slice comes with the index of its range."""
    return Call(
        select_slices("range_position", "read_ranges(%s::bigint[], %s::bigint[], %s::bigint[])"),
        (list(ids), list(starts), list(stops)),
        lambda rows: [(row[0] - 1, slice_of(row[1:])) for row in rows],
        True,
    )


def save_snapshot(
    parent: SnapshotName | None,
    ranges: tuple[Sequence[int], Sequence[int], Sequence[int]],
    everything: tuple[Sequence[int], Sequence[int]] | None,
) -> Call[SavedSnapshot]:
    """Keep how far a batch reads. Saved twice, because the connection broke, it leaves one that nobody knows."""
    all_ids, all_positions = (None, None) if everything is None else map(list, everything)
    return Call(
        "SELECT * FROM penstock.save_snapshot(%s::bigint, %s::text, %s::bigint[], %s::bigint[], %s::bigint[], "
        "%s::bigint[], %s::bigint[])",
        (*(parent or (0, None)), *map(list, ranges), all_ids, all_positions),
        lambda rows: SavedSnapshot(SnapshotName(*rows[0][:2]), rows[0][2]),
        True,
    )


def chain(name: SnapshotName, down_to: int | None) -> Call[list[SnapshotRow]]:
    """Return a snapshot and those before it, the newest first."""
    return Call(
        "SELECT * FROM penstock.snapshot_chain(%s::bigint, %s::text, %s::bigint)",
        (*name, down_to),
        lambda rows: [SnapshotRow(*row) for row in rows],
        True,
    )


def next_snapshot(snapshot_id: int) -> Call[SnapshotName | None]:
    """Return the snapshot that was saved after this one."""

    def parse(rows: Sequence[Row]) -> SnapshotName | None:
        return SnapshotName(*rows[0]) if rows else None

    return Call("SELECT * FROM penstock.next_snapshot(%s::bigint)", (snapshot_id,), parse, True)


def keep_snapshot(snapshot_id: int) -> Call[None]:
    """Say that a query still goes on from a snapshot."""
    return Call("SELECT penstock.keep_snapshot(%s::bigint)", (snapshot_id,), nothing, True)


def note_epoch(writer: str, run: str, epoch: int, snapshot_id: int) -> Call[None]:
    """Say which snapshot an epoch reads."""
    return Call(
        # As with what is staged: `stage_calls.flush` waits for the log on disk, and this one need not.
        "SELECT penstock.note_epoch(%s::text, %s::text, %s::bigint, %s::bigint) "
        "FROM set_config('synchronous_commit', 'off', true)",
        (writer, run, epoch, snapshot_id),
        nothing,
        True,
    )


def ensure_reader(queue: str, group: str) -> Call[None]:
    """Make an external group, or find it."""
    return Call("SELECT penstock.ensure_reader(%s::text, %s::text)", (queue, group), nothing, True)


def advance(
    queue: str,
    group: str,
    ids: Sequence[int],
    offsets: Sequence[int],
    lineage: int | None = None,
    takes_over: bool = False,
) -> Call[Advanced]:
    """Tell how far an external group has read; `lineage` is the reader that the group follows."""
    parameters: tuple[Any, ...] = (queue, group, list(ids), list(offsets), lineage, takes_over)
    return Call(
        "SELECT * FROM penstock.advance_reader(%s::text, %s::text, %s::bigint[], %s::bigint[], %s::bigint, "
        "%s::boolean)",
        parameters,
        lambda rows: Advanced(*rows[0]),
        True,
    )
