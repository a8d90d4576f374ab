"""The calls of archives: what can be archived, what is, and where it lies. Like `calls`, it runs none."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from penstock.postgres.statements.calls import Call, Row, scalar


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


class Begun(NamedTuple):
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


class Range(msgspec.Struct, frozen=True, array_like=True):
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


class File(msgspec.Struct, frozen=True, array_like=True):
    """A file of a run, by its path below the location, and what it holds in the order of its rows."""

    path: str
    ranges: list[Range]
    bytes: int = 0
    checksum: str = ""

    @property
    def messages(self) -> int:
        """How many messages it holds."""
        return sum(part.stop - part.start for part in self.ranges)


class Dropped(NamedTuple):
    """What was dropped, and where to go on (None: that was all)."""

    segments: int
    messages: int
    next_partition: int | None


def archives(queue: str | None) -> Call[list[ArchiveInfo]]:
    """List the recorded runs of a queue, or of all."""
    return Call(
        "SELECT * FROM penstock.list_archives(%s::text)",
        (queue,),
        lambda rows: [ArchiveInfo(*row) for row in rows],
        True,
    )


def ranges(queue: str, before: datetime | None, partitions: Sequence[str] | None) -> Call[list[Archivable]]:
    """Find what can be archived now."""
    return Call(
        "SELECT * FROM penstock.archive_ranges(%s::text, %s::timestamptz, %s::text[])",
        (queue, before, None if partitions is None else list(partitions)),
        lambda rows: [Archivable(*row) for row in rows],
        True,
    )


def begin(queue: str, location: str) -> Call[Begun]:
    """Begin a run, on a connection that is kept for as long as it lasts."""

    def parse(rows: Sequence[Row]) -> Begun:
        run, runs, locations = rows[0]
        return Begun(run, list(zip(runs or [], locations or [], strict=True)))

    return Call("SELECT * FROM penstock.begin_archive(%s::text, %s::text)", (queue, location), parse)


def forget(run: str) -> Call[bool]:
    """Forget a run that was not recorded."""
    return Call("SELECT penstock.forget_archive(%s::text)", (run,), lambda rows: bool(rows[0][0]), True)


def record(run: str, files: Sequence[File]) -> Call[int]:
    """Record a run: from here on it is archived."""
    rows = [(index, part) for index, file in enumerate(files, 1) for part in file.ranges]
    return Call(
        "SELECT penstock.record_archive(%s::text, %s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::bigint[], "
        "%s::bigint[], %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s::timestamptz[], %s::timestamptz[])",
        (
            run,
            [file.path for file in files],
            [file.bytes for file in files],
            [file.checksum for file in files],
            [part.partition_id for _, part in rows],
            [part.start for _, part in rows],
            [part.stop for _, part in rows],
            [index for index, _ in rows],
            [part.row_group for _, part in rows],
            [part.first_row for _, part in rows],
            [part.bytes for _, part in rows],
            [part.first_time for _, part in rows],
            [part.last_time for _, part in rows],
        ),
        scalar,
        True,
    )


def drop(queue: str, partitions: Sequence[str] | None, after: int) -> Call[Dropped]:
    """Drop segments that are archived, of a chunk of partitions."""
    return Call(
        "SELECT * FROM penstock.drop_archived(%s::text, %s::text[], %s::bigint)",
        (queue, None if partitions is None else list(partitions), after),
        lambda rows: Dropped(*rows[0]),
        True,
    )


def floors(ids: Sequence[int], logs: Sequence[int]) -> Call[list[int]]:
    """Find from where on partitions can be read together with their archive."""
    return Call(
        "SELECT penstock.archived_floors(%s::bigint[], %s::bigint[])",
        (list(ids), list(logs)),
        lambda rows: rows[0][0] or [],
        True,
    )


def plan(ids: Sequence[int], starts: Sequence[int], stops: Sequence[int]) -> Call[list[Archived]]:
    """Find where archived messages lie."""
    return Call(
        "SELECT * FROM penstock.plan_archived(%s::bigint[], %s::bigint[], %s::bigint[])",
        (list(ids), list(starts), list(stops)),
        lambda rows: [Archived(*row) for row in rows],
        True,
    )


def at(ids: Sequence[int], moment: datetime) -> Call[list[tuple[Archived, bool]]]:
    """Find the archived ranges in which a moment lies, and whether it lies at their beginning."""
    return Call(
        "SELECT * FROM penstock.archived_at(%s::bigint[], %s::timestamptz)",
        (list(ids), moment),
        lambda rows: [(Archived(*row[:-1]), row[-1]) for row in rows],
        True,
    )


def published(writer: str) -> Call[int | None]:
    """Say how many messages a batch of this name has published, if it was."""
    return Call(
        "SELECT messages FROM penstock.published_batch(%s::text)",
        (writer,),
        lambda rows: rows[0][0] if rows else None,
        True,
    )


def letters(stage: int) -> Call[list[tuple[str, str, int, int]]]:
    """List what is to become dead letters and is not in the log: queue, partition, partition's id, offset."""
    return Call(
        "SELECT * FROM penstock.archived_letters(%s::bigint)",
        (stage,),
        lambda rows: [(queue, partition, number, offset) for queue, partition, number, offset in rows],
        True,
    )


def copy_letters(stage: int, messages: Sequence[Sequence[object]]) -> Call[int]:
    """Keep copies of messages that are to become dead letters: partition's id, offset, value, key, headers, time."""
    return Call(
        "SELECT penstock.copy_letters(%s::bigint, %s::bigint[], %s::bigint[], %b::bytea[], %s::text[], %s::text[], "
        "%s::timestamptz[])",
        (stage, *([message[index] for message in messages] for index in range(6))),
        scalar,
        True,
    )
